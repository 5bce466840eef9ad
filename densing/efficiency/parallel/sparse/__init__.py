"""Sparse logistic regression over items that lie in several places: gradients travel, items do not.

numpy and scipy only. Ranks need torch; the estimator with scikit-learn's interface loads that library when it is asked
for.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
