"""The classifier with scikit-learn's interface."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from densing.core import Array, InputError
from densing.efficiency.systems.prox_csl.holders import Here, split_rows
from densing.efficiency.systems.prox_csl.parts import Part, with_intercept
from densing.efficiency.systems.prox_csl.stores import Store, unite
from densing.efficiency.systems.prox_csl.surrogate import ADAPTIVE, GUARDED, STARTS, Alpha, Start, train_csl


class SettingError(InputError, ValueError):
    """A setting or a label that the classifier cannot use; a ValueError, as scikit-learn has it."""


class ProxCSL(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Sparse logistic regression over partitions, in rounds of gradients.

    It minimises :math:`\frac1n \sum_i \log(1 + e^{-s_i (x_i^T w + b)}) + \lambda |w|_1` over all items, with s = ±1
    for the two classes, without bringing the items together.

    Source: Lu et al., KDD 2024 (arXiv 2407.06346); see :mod:`densing.efficiency.systems.prox_csl.surrogate`.

    Parameters
    ----------
    lam : float
        Penalty of the weights, above 0. scikit-learn's C of a fit of n items is 1 / (n lam).
    partitions : int
        Items are dealt out to so many, at random; 1 is a fit of all items at once. Not used by :meth:`fit_stores`.
    updates : int
        At most; each is a round of one broadcast and one gather, and one more where the guard does it again. The
        paper's method is ``updates=2, alpha="adaptive"``.
    alpha : float, "adaptive" or "guarded"
        Strength of the proximal term. Guarded: an update that does not lower the objective over all items is done again
        with a stronger term. Adaptive is the authors' rule, none below 1,000 weights, else found by short trials: it
        runs away where partitions hold few items, are unlike each other, or can be separated.
    start : {"naive", "owa", "zeros"}
        Plain mean or fitted combination of the partitions' own solutions, or zeros.
    fit_intercept : bool
        One more weight without penalty. The authors have none.
    tol : float
        Updates end where optimality over all items is violated by no more than this share of ``lam``, which leaves the
        objective at most 2 ``tol`` above its minimum (:func:`train_csl`); each small problem is solved to a hundredth
        of it.
    seed : int
        Of the dealing out.

    Attributes
    ----------
    coef_ : array of shape (1, d)
    intercept_ : array of shape (1,)
    classes_ : array of shape (2,)
    history_ : tuple of float
        Objective over all items, at the start and after each update.
    alphas_ : tuple of float
        Strength of the proximal term of each update.
    bytes_ : int
        What would travel if each partition but the main one were elsewhere: solutions, weights and gradients as
        doubles; for stores also their features' names.
    violation_ : float
        Of optimality over all items at the end, as a share of ``lam``.
    n_iter_ : int
        Newton steps of the updates, 1 at least.
    skipped_ : int
        Partitions with items of one class only: they have no solution of their own, and give gradients all the same.
    feature_names_, collisions_ :
        Of :meth:`fit_stores`: the union's names, and how many share their number with another.

    Warns
    -----
    ConvergenceWarning
        scikit-learn's, from :meth:`fit` and :meth:`fit_stores`: where the objective has risen, or ``violation_`` is
        above ``tol`` after the last update.

    Examples
    --------
    >>> from scipy import sparse
    >>> X = sparse.random(400, 50, density=0.2, random_state=0, format="csr")
    >>> y = np.where((X @ np.r_[8.0, -8.0, np.zeros(48)]) > 0, "fails", "solves")
    >>> model = ProxCSL(lam=0.005, partitions=4).fit(X, y)
    >>> model.violation_ <= model.tol, model.bytes_ > 0, model.score(X, y) > 0.8
    (True, True, True)
    """

    def __init__(
        self,
        lam: float = 1e-3,
        partitions: int = 1,
        updates: int = 100,
        alpha: Alpha = GUARDED,
        start: Start = "naive",
        fit_intercept: bool = True,
        tol: float = 1e-2,
        seed: int = 0,
    ) -> None:
        self.lam = lam
        self.partitions = partitions
        self.updates = updates
        self.alpha = alpha
        self.start = start
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.seed = seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to items whose partitions are made here.

        Parameters
        ----------
        X : array or scipy sparse array of shape (n, d)
        y : array of shape (n,)
            Two classes.

        Raises
        ------
        ValueError
            A setting out of range, other than two classes, or what scikit-learn refuses of X and y.
        """
        self._check_settings()
        X, y = validate_data(self, X, y, accept_sparse=["csc", "csr"], dtype=np.float64)
        labels = self._classes(y)
        if not 1 <= self.partitions <= len(labels):
            raise SettingError(f"partitions={self.partitions} with n_samples={len(labels)}; give from 1 to n_samples")
        parts = split_rows(self._with_intercept(X), labels, self.partitions, self.seed)
        return self._train(parts, X.shape[1])

    def fit_stores(self, stores: Sequence[Store], buckets: int | None = None) -> Self:
        """Fit to items that lie in several stores, which number their features each for itself.

        Parameters
        ----------
        stores : sequence of Store
            Features, labels (two classes in all) and the features' names; each store is a partition.
        buckets : int, optional
            As for :func:`unite`.
        """
        self._check_settings()
        given = [Store(*store) for store in stores]
        if given:
            labels = self._classes(np.concatenate([np.asarray(store.labels) for store in given]))
            ends = np.cumsum([len(store.labels) for store in given])[:-1]
            own = zip(given, np.split(labels, ends), strict=True)
            given = [store._replace(labels=numbers) for store, numbers in own]
        union = unite(given, buckets)
        parts = [Part(self._with_intercept(part.features), part.labels) for part in union.parts]
        if not all(np.isfinite(part.features.data).all() for part in parts):
            raise SettingError("a store's features contain NaN or infinity; leave such items out")
        self.n_features_in_ = len(union.names)
        self.feature_names_, self.collisions_ = union.names, union.collisions
        self._train(parts, len(union.names))
        self.bytes_ += union.bytes
        return self

    def decision_function(self, X: Any) -> Array:
        """Return each item's margin, positive for ``classes_[1]``; shape (n,)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=["csr", "csc"], dtype=np.float64, reset=False)
        return X @ self.coef_[0] + self.intercept_[0]

    def predict(self, X: Any) -> Array:
        """Return each item's class, shape (n,)."""
        margins = self.decision_function(X)
        return self.classes_[(margins > 0).astype(int)]

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, shape (n, 2)."""
        likely = expit(self.decision_function(X))
        return np.column_stack([1 - likely, likely])

    def _train(self, parts: list[Part], width: int) -> Self:
        penalty = np.full(parts[0].width, float(self.lam))
        penalty[width:] = 0.0
        holders = Here(parts)
        trained = train_csl(
            holders, penalty, updates=self.updates, alpha=self.alpha, start=self.start, tol=self.tol / 100,
            until=self.tol,
        )  # fmt: skip
        self.coef_ = trained.weights[None, :width]
        self.intercept_ = trained.weights[width:] if self.fit_intercept else np.zeros(1)
        self.history_, self.alphas_, self.bytes_ = trained.history, trained.alphas, trained.bytes
        self.n_iter_, self.skipped_, self.violation_ = max(trained.steps, 1), holders.skipped, trained.violation
        first, last = trained.history[0], trained.history[-1]
        if last > first:
            trouble = f"the objective over all items rose from {first:.4g} to {last:.4g}"
            remedy = 'use alpha="guarded"' if self.alpha != GUARDED else "centre or rescale the features"
        elif trained.violation > self.tol:
            trouble = f"optimality is violated by {trained.violation:.2g} of lam, tol is {self.tol:g}"
            done = len(trained.alphas) < self.updates
            remedy = "rescale the features" if done else f"raise updates (now {self.updates}), lam or tol"
        else:
            return self
        message = f"ProxCSL has not converged after {len(trained.alphas)} updates: {trouble}; {remedy}"
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
        return self

    def _with_intercept(self, X: Any) -> Any:
        return with_intercept(X) if self.fit_intercept else X

    def _classes(self, y: Array) -> Array:
        """Set ``classes_``, and return 1 where an item is of the second."""
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise SettingError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise SettingError(f"all items are of one class, {self.classes_.tolist()[0]!r}; two classes are needed")
        return labels

    def _check_settings(self) -> None:
        def number(name: str, least: float, kind: Any = Real, above: bool = False) -> None:
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value):
                raise SettingError(f"{name}={value!r} is not a {'whole ' if kind is Integral else ''}number")
            if value < least or (above and value == least):
                raise SettingError(f"{name}={value!r}; give {'above' if above else 'at least'} {least:g}")

        number("lam", 0, above=True)
        number("tol", 0, above=True)
        number("partitions", 1, Integral)
        number("updates", 0, Integral)
        number("seed", 0, Integral)
        if self.alpha not in (ADAPTIVE, GUARDED):
            number("alpha", 0)
        if self.start not in STARTS:
            raise SettingError(f"start={self.start!r}; give one of {', '.join(STARTS)}")
