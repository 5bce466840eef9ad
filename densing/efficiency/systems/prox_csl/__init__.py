"""Sparse classifiers over partitions: means of local solutions, and proxCSL's rounds of gradients.

They train a linear classifier with an L1 penalty, no transformer: their workload is :class:`Convex`, and every other is
refused, as theirs is by the other techniques. The step of a plan is one update (of the means: the whole of it).

Source: Lu, Curtin, Raff, Ferraro and Holt, KDD 2024, arXiv 2407.06346, and ``FutureComputing4AI/ProxCSL``; for the
combination Izbicki and Shelton, ECML 2019; for the rival Andrew and Gao, ICML 2007.

Gradients travel, items do not. The mathematics is numpy and scipy only; ranks (``run``) need torch; the estimator with
scikit-learn's interface loads that library when it is asked for.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
