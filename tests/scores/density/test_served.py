"""Density of what is served: the reference's numbers over what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from densing.core import InputError
from densing.scores.density import run_densities, served_densities
from densing.scores.evals import RunStore, Variant
from tests.support.served_runs import write_variant


def test_density_is_per_kept_parameter_and_per_byte(tmp_path: Path) -> None:
    write_variant(tmp_path, Variant(), (0, 0, 0))
    write_variant(tmp_path, Variant(exit=2), (0, 0, 0))
    table = served_densities(tmp_path, "m")
    store = RunStore(tmp_path)
    expected = run_densities(store.measurements(), store.models()).table
    expected = expected[expected["quantity"].eq("loss")].set_index("model")
    # The same losses: the same N, by half the parameters and half the bytes.
    assert table["n_eff"].tolist() == [expected.loc["m", "n_eff"]] * 2
    assert table["density"].tolist() == pytest.approx(expected.loc[table["model"], "density"].tolist())
    assert table["density"][0] == pytest.approx(2 * table["density"][1])
    assert table["n_eff_per_byte"].tolist() == pytest.approx([table["n_eff"][0] / 400, table["n_eff"][0] / 800])


def test_what_the_reference_does_not_know_is_refused(tmp_path: Path) -> None:
    write_variant(tmp_path, Variant(), (0, 0, 0), tasks=("toy",))
    with pytest.raises(InputError, match="none of its benchmarks"):
        served_densities(tmp_path, "m")
    with pytest.raises(InputError, match="quantity 'speed': choose loss or score"):
        served_densities(tmp_path, "m", quantity="speed")
