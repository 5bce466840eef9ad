"""The sparse classifier as scikit-learn sees it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from itertools import product

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

sklearn = pytest.importorskip("sklearn")

from sklearn.exceptions import ConvergenceWarning  # noqa: E402

from densing.core import InputError, install_command  # noqa: E402
from densing.training import ProxCSL, Store  # noqa: E402


def made(items: int = 400, width: int = 60, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    """Return sparse items and the words that name their class."""
    rng = np.random.default_rng(seed)
    features = sparse.random_array((items, width), density=0.2, rng=rng, format="csr")
    margins = features @ np.r_[rng.normal(size=5) * 8, np.zeros(width - 5)]
    return features, np.where(margins + rng.logistic(size=items) > 0, "yes", "no")


@pytest.mark.slow
def test_scikit_learns_own_checks_pass() -> None:
    from sklearn.utils.estimator_checks import check_estimator

    for model in (ProxCSL(), ProxCSL(partitions=3, updates=5, fit_intercept=False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(model, on_fail=None, on_skip=None)
        failed = {result["check_name"] for result in results if result["status"] not in ("passed", "skipped")}
        # One sample is fewer than three partitions: refused, and said with its number.
        assert failed == set()


def test_what_is_fitted_is_told() -> None:
    features, labels = made()
    with pytest.warns(ConvergenceWarning, match=r"after 2 updates: optimality .* raise updates \(now 2\)"):
        model = ProxCSL(lam=0.003, partitions=4, updates=2, alpha=0.1).fit(features, labels)
    assert model.classes_.tolist() == ["no", "yes"] and model.coef_.shape == (1, 60) and model.intercept_.shape == (1,)
    assert len(model.history_) == 3 and len(model.alphas_) == 2 and model.n_iter_ >= 2 and model.skipped_ == 0
    # The last gradient is what tells whether it has converged.
    assert model.bytes_ == 3 * 8 * 61 + 3 * 3 * 8 * (2 * 61 + 2)
    likely = model.predict_proba(features)
    assert likely.sum(axis=1) == pytest.approx(1)
    assert (model.predict(features) == model.classes_[(likely[:, 1] > 0.5).astype(int)]).all()
    assert model.score(features, labels) > 0.7
    assert model.set_params(lam=0.1).get_params()["lam"] == 0.1


def test_one_partition_is_scikit_learns_fit() -> None:
    from sklearn.linear_model import LogisticRegression

    features, labels = made()
    ours = ProxCSL(lam=0.01, tol=1e-7).fit(features, labels)
    theirs = LogisticRegression(l1_ratio=1, solver="saga", C=1 / (400 * 0.01), tol=1e-9, max_iter=20_000)
    theirs.fit(features, labels)
    assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-5)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)


def test_stores_are_partitions_under_one_numbering() -> None:
    features, labels = made()
    names = [f"word{number}" for number in range(60)]
    turned = [*reversed(names)]
    stores = [Store(features[:200], labels[:200], names), Store(features[200:, ::-1], labels[200:], turned)]
    model = ProxCSL(lam=0.003).fit_stores(stores)
    assert model.feature_names_ == sorted(names) and model.collisions_ == 0
    columns = [names.index(name) for name in model.feature_names_]
    assert model.score(features[:, columns], labels) > 0.7
    hashed = ProxCSL(lam=0.003).fit_stores(stores, buckets=32)
    assert hashed.collisions_ >= 28 and hashed.coef_.shape == (1, 32)


LAM = 3e-3
WORLDS = ("noise", "separable", "unlike", "collinear")


def world(kind: str, items: int = 300, width: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return dense items and their class; six features decide it, with noise or without."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(items, width))
    if kind == "collinear":
        features = np.repeat(features[:, : width // 6], 6, axis=1) + 1e-3 * features
    margins = features @ np.r_[rng.normal(size=6) * 2, np.zeros(width - 6)]
    noise = 0.0 if kind == "separable" else rng.logistic(size=items)
    return features, (margins + noise > 0).astype(int)


def stores(kind: str, features: np.ndarray, labels: np.ndarray, partitions: int) -> list[Store]:
    """Deal items out; those of unlike partitions by the size of their first feature."""
    order = np.argsort(features[:, 0]) if kind == "unlike" else np.random.default_rng(1).permutation(len(labels))
    names = [f"feature{number:02d}" for number in range(features.shape[1])]
    return [Store(features[own], labels[own], names) for own in np.array_split(order, partitions)]


def objective(features: np.ndarray, labels: np.ndarray, weights: np.ndarray, intercept: float) -> float:
    margins = features @ weights + intercept
    return float(np.mean(np.logaddexp(0, margins) - labels * margins) + LAM * np.abs(weights).sum())


def pooled_optimum(features: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return scipy's least objective over all items, and how many items it puts right: weights as differences."""
    width = features.shape[1]
    signed = np.hstack([features, -features, np.ones((len(labels), 1))])

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signed @ x
        slope = signed.T @ (1 / (1 + np.exp(-margins)) - labels) / len(labels)
        slope[:-1] += LAM
        return float(np.mean(np.logaddexp(0, margins) - labels * margins) + LAM * x[:-1].sum()), slope

    bounds = [(0, None)] * (2 * width) + [(None, None)]
    options = {"maxiter": 20_000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 40}
    found = minimize(value, np.zeros(2 * width + 1), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return float(found.fun), float(np.mean((signed @ found.x > 0) == labels))


# Of 32 partitions each has nine items.
@pytest.mark.parametrize(("kind", "partitions"), [*product(WORLDS, [2, 8]), ("noise", 32), ("unlike", 32)])
def test_at_its_defaults_it_ends_at_the_pooled_optimum_or_says_so(kind: str, partitions: int) -> None:
    features, labels = world(kind)
    best, accuracy = pooled_optimum(features, labels)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        model = ProxCSL(lam=LAM).fit_stores(stores(kind, features, labels, partitions))
    assert list(model.history_) == sorted(model.history_, reverse=True)
    said = [str(warning.message) for warning in raised if warning.category is ConvergenceWarning]
    assert (len(said) == 1) == (model.violation_ > model.tol), said
    # What is reported is true of the weights themselves.
    assert model.history_[-1] == pytest.approx(objective(features, labels, model.coef_[0], model.intercept_[0]))
    gap = model.history_[-1] / best - 1
    assert -1e-6 < gap < 2 * model.violation_ + 1e-6
    if not said:
        assert gap < 2 * model.tol and abs(model.score(features, labels) - accuracy) <= 0.01


def test_the_authors_rule_runs_away_and_is_said_to() -> None:
    features, labels = world("noise")
    with pytest.warns(ConvergenceWarning, match=r'objective over all items rose from .* use alpha="guarded"'):
        model = ProxCSL(lam=LAM, updates=2, alpha="adaptive").fit_stores(stores("noise", features, labels, 8))
    assert model.history_[-1] > model.history_[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": 0}, "lam=0; give above 0"),
        ({"lam": float("nan")}, "lam=nan is not a number"),
        ({"partitions": 0}, "partitions=0; give at least 1"),
        ({"partitions": 2.5}, "partitions=2.5 is not a whole number"),
        ({"partitions": 401}, "partitions=401 with n_samples=400"),
        ({"updates": -1}, "updates=-1; give at least 0"),
        ({"alpha": "much"}, "alpha='much' is not a number"),
        ({"start": "best"}, "start='best'; give one of naive, owa, zeros"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        ProxCSL(**settings).fit(*made())
    assert isinstance(raised.value, ValueError)


def test_labels_other_than_two_are_refused() -> None:
    features, _ = made()
    with pytest.raises(InputError, match="all items are of one class, 1"):
        ProxCSL().fit(features, np.ones(400, dtype=int))
    with pytest.raises(InputError, match=r"The type of the target is multiclass"):
        ProxCSL().fit(features, np.arange(400) % 3)
    with pytest.raises(InputError, match="NaN or infinity"):
        ProxCSL().fit_stores([Store(np.array([[np.nan], [1.0]]), np.array([0, 1]), ["a"])])


def test_without_scikit_learn_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import densing, densing.training\n"
        "try:\n    from densing.training import ProxCSL\n"
        "except densing.DensingError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"ProxCSL needs scikit-learn; {install_command('explain')}"
