"""Sparse classifiers over partitions: means of local solutions, and proxCSL's rounds of gradients.

They train a linear classifier with an L1 penalty, not a transformer: they accept only the workload :class:`Convex`,
which the other techniques refuse. The step of a plan is one update (for the means, the whole run).

Source: Lu, Curtin, Raff, Ferraro and Holt, KDD 2024, arXiv 2407.06346, and ``FutureComputing4AI/ProxCSL``; for the
weighted mean Izbicki and Shelton, ECML 2019; for the competing method Andrew and Gao, ICML 2007.

Gradients are sent, items are not. The mathematics needs only numpy and scipy; ranks (``run``) need torch; the
estimator with scikit-learn's interface loads that library on first use.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
