"""The sparse classifier as scikit-learn sees it."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import sparse

sklearn = pytest.importorskip("sklearn")

from densing.core import InputError, install_command  # noqa: E402
from densing.training import ProxCSL, Store  # noqa: E402


def made(items: int = 400, width: int = 60, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    """Return sparse items and the words that name their class."""
    rng = np.random.default_rng(seed)
    features = sparse.random_array((items, width), density=0.2, rng=rng, format="csr")
    margins = features @ np.r_[rng.normal(size=5) * 8, np.zeros(width - 5)]
    return features, np.where(margins + rng.logistic(size=items) > 0, "yes", "no")


def test_scikit_learns_own_checks_pass() -> None:
    from sklearn.utils.estimator_checks import check_estimator

    for model in (ProxCSL(), ProxCSL(partitions=3, fit_intercept=False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(model, on_fail=None, on_skip=None)
        failed = {result["check_name"] for result in results if result["status"] not in ("passed", "skipped")}
        # One sample is fewer than three partitions: refused, and said with its number.
        assert failed == set()


def test_what_is_fitted_is_told() -> None:
    features, labels = made()
    model = ProxCSL(lam=0.003, partitions=4).fit(features, labels)
    assert model.classes_.tolist() == ["no", "yes"] and model.coef_.shape == (1, 60) and model.intercept_.shape == (1,)
    assert len(model.history_) == 3 and len(model.alphas_) == 2 and model.n_iter_ >= 2 and model.skipped_ == 0
    assert model.bytes_ == 3 * 8 * 61 + 2 * 3 * 8 * (2 * 61 + 2)
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
