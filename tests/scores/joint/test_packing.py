"""Draws in few bytes: close, never zero where they were not, and what is shipped is of this catalog and sampler."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from densing.scores.catalog import load_catalog
from densing.scores.joint import scale as scales
from densing.scores.joint.cells import joint_cells, toy_cells
from densing.scores.joint.packing import FINEST, pack, unpack
from densing.scores.joint.scale import JointDraws, JointScale, catalog_scale, fit_joint, scale_name, usual_scale

STALE = "no joint scale of this catalog, sampler and packing is shipped: run `make shipped`, and commit what it writes"


def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "plain": rng.normal([0, 3, -50], [1, 0.01, 20], (400, 3)),
        "heavy": np.exp(rng.normal(-12, 4, (400, 2, 5))),
        "flat": np.broadcast_to([0.0, 0.37, -1e-9], (400, 3)),
        "alone": rng.normal(size=400),
        "some": rng.normal(size=(400, 2)) * rng.integers(0, 2, (400, 2)),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def test_what_is_packed_is_within_a_step_and_keeps_its_sign() -> None:
    arrays = drawn()
    again = unpack(pack(arrays))
    assert list(again) == list(arrays)
    for name, array in arrays.items():
        spread = np.diff(np.quantile(array, [0.16, 0.84], axis=0), axis=0)[0] / 2
        step = np.maximum(FINEST * spread, 2.0**-22 * abs(array).max(axis=0))
        assert again[name].dtype == np.float32 and (abs(again[name] - array) <= step).all()
        # What could be less than half a step is the one exception to rounding to the nearest.
        assert (abs(again[name] - array) <= step / 2)[abs(array) >= step].all()
        assert (np.sign(again[name]) == np.sign(array)).all(), "no variance becomes zero"


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh machine: nothing in the cache, nothing in memory."""
    monkeypatch.setenv("DENSING_CACHE", str(tmp_path))
    monkeypatch.setattr(scales, "_FITTED", {})
    return tmp_path


def forbidden(*_: object, **__: object) -> JointScale:
    raise AssertionError("fitted, where it could have been read")


def test_what_is_fitted_is_what_is_read_the_next_time(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = toy_cells()
    # Five draws of each chain: a file of them is read as any other.
    monkeypatch.setattr(scales, "DRAWS", 20)
    short = partial(fit_joint, sweeps=10, burn=5, draws=20)
    monkeypatch.setattr(scales, "fit_joint", short)
    fitted = usual_scale(cells)
    monkeypatch.setattr(scales, "fit_joint", forbidden)
    scales._FITTED.clear()
    read = usual_scale(cells)
    assert read is not fitted and usual_scale(cells) is read
    for item in fields(JointDraws):
        np.testing.assert_array_equal(getattr(read.draws, item.name), getattr(fitted.draws, item.name))
    whole = (empty / scale_name(cells)).read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:2000] + bytes(2000) + whole[4000:], b""):
        (empty / scale_name(cells)).write_bytes(damaged)
        scales._FITTED.clear()
        with pytest.raises(AssertionError, match="fitted"):
            usual_scale(cells)
    monkeypatch.setattr(scales, "fit_joint", short)
    np.testing.assert_array_equal(usual_scale(cells).draws.abilities, fitted.draws.abilities)


def test_the_scales_of_the_embedded_catalog_are_shipped(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by `make shipped`; a change of catalog, sampler or packing makes it anew."""
    catalog = load_catalog()
    shipped = {file.name for file in scales.SHIPPED_SCALES.iterdir()}
    assert shipped == {scale_name(joint_cells(catalog, own=own)) for own in ("none", "harness")}, STALE
    monkeypatch.setattr(scales, "fit_joint", forbidden)
    usual, owns = catalog_scale(catalog), catalog_scale(catalog, own="harness")
    assert 300 < len(usual) < len(owns) and not list(empty.iterdir())


@pytest.mark.slow
def test_the_shipped_scale_is_what_the_sampler_gives() -> None:
    catalog = load_catalog()
    # A fourth of the usual length: what the longer one says, but for the noise of some 25 effective draws.
    shorter = fit_joint(joint_cells(catalog), sweeps=100, draws=400, burn=120)
    shipped, fitted = (scale.abilities() for scale in (catalog_scale(catalog), shorter))
    apart = abs(shipped["ability"] - fitted["ability"]) / fitted["sd"]
    assert apart.quantile(0.9) < 0.5 and apart.max() < 1.5
    wider = np.log(shipped["sd"] / fitted["sd"]).abs()
    assert wider.quantile(0.9) < 0.5
