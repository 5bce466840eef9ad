"""How well sizes are known: what a size rests on, what rounding leaves open, and that densities carry it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from densing.scores.catalog import load_catalog, size_intervals
from densing.scores.density import catalog_densities, estimate_density
from densing.scores.references import load_reference

MODELS = load_catalog().models


def ends(name: str, label: float, total: float, basis: str | None) -> list[float]:
    columns = ["model", "params_label_b", "params_total_b", "params_basis"]
    row = pd.DataFrame([(name, label, total, basis)], columns=columns)
    return (size_intervals(row).iloc[0] / 1e9).round(9).tolist()


@pytest.mark.parametrize(
    ("name", "label", "total", "basis", "expected"),
    [
        ("A-7B", 7, 7, "label", [6.5, 7.5]),
        ("A-7B-v0.1", 7, 7, "label", [6.5, 7.5]),
        ("A-1.5B", 1.5, 1.5, "label", [1.45, 1.55]),
        ("A-500M", 0.5, 0.5, "label", [0.4995, 0.5005]),
        ("A-2.0B", 2, 2, "label", [1.95, 2.05]),
        ("nameless", np.nan, 7, "recalled", [6.5, 7.5]),
        ("A-2.5-7B", 7, 7, "recalled", [6.5, 7.5]),
        ("A-7B", 7, 7.7, "recalled", [7.65, 7.75]),
        ("A-4B", 4, 4.3, "count", [4.25, 4.35]),
        # A count has two digits at least.
        ("A-1B", 1, 1, "count", [0.95, 1.05]),
        ("A-12B", 12, 12, "count", [11.5, 12.5]),
        ("A-8B", 8, 8.03, "count", [8.025, 8.035]),
        ("A-110B", 110, 111, "count", [110.5, 111.5]),
    ],
)
def test_a_size_lies_within_half_a_unit_of_its_last_digit(name, label, total, basis, expected) -> None:
    assert ends(name, label, total, basis) == pytest.approx(expected)


def test_a_size_of_no_stated_basis_is_taken_as_it_is() -> None:
    assert np.isnan(ends("mine-7B", 7, 7, None)).all() and np.isnan(ends("A-7B", 7, np.nan, "label")).all()


def test_every_size_of_the_catalog_says_what_it_rests_on() -> None:
    sized = MODELS["params_total_b"].notna()
    assert (MODELS["params_basis"].notna() == sized).all()
    recalled = MODELS["params_source"].fillna("").str.startswith("recalled#")
    assert MODELS.loc[recalled, "params_basis"].eq("recalled").all()
    named = MODELS["params_basis"].eq("label")
    assert (MODELS.loc[named, "params_total_b"] == MODELS.loc[named, "params_label_b"]).all()
    inside = size_intervals(MODELS).loc[sized] / 1e9
    total = MODELS.loc[sized, "params_total_b"]
    assert (inside["params_lo"] < total).all() and (total < inside["params_hi"]).all()


def test_two_thirds_of_known_counts_lie_within_the_rounding_of_their_label() -> None:
    """The share that the docstring and the page on the catalog state."""
    known = MODELS[
        MODELS["params_basis"].eq("count")
        & MODELS["architecture"].eq("dense")
        & MODELS["params_label_b"].notna()
        & MODELS["params_total_b"].ne(MODELS["params_label_b"])
    ]
    labels = known.assign(params_total_b=known["params_label_b"], params_basis="label")
    rounded = size_intervals(labels) / 1e9
    held = known["params_total_b"].between(rounded["params_lo"], rounded["params_hi"])
    assert f"{len(known)} dense models" in str(size_intervals.__doc__)
    assert f"{int(held.sum())} counts lie" in str(size_intervals.__doc__)


def test_counts_replace_labels_where_a_source_has_one() -> None:
    facts = MODELS.set_index("model")
    quoted = ["BLOOM-176B", "Llama-2-70B", "Olmo-3-7B", "Olmo-3-32B"]
    counted = ["Llama-2-7B", "MPT-7B", "MPT-30B", "SmolLM2-135M"]
    assert facts.loc[counted, "params_basis"].eq("count").all()
    assert facts.index[facts["params_basis"].eq("second-hand")].sort_values().tolist() == sorted(quoted)
    assert facts.loc[quoted, "params_source"].str.endswith("second-hand").all()
    counted = [*counted, *quoted]
    assert facts.loc[counted, "params_total_b"].ne(facts.loc[counted, "params_label_b"]).all()
    assert facts.loc["Llama-2-7B", "params_source"].startswith("fms-fsdp#")


def test_gemma_2_of_2_and_9_b_and_gemma_3_learned_from_a_teacher() -> None:
    facts = MODELS.set_index("model")
    taught = [*MODELS.loc[MODELS["family"].eq("Gemma-3"), "model"], "Gemma-2-2B", "Gemma-2-9B"]
    assert len(taught) == 7
    assert facts.loc[taught, "derivation"].eq("distilled").all()
    assert facts.loc[taught, "notes"].str.contains("arXiv 2503.19786|arXiv 2408.00118").all()
    assert facts.loc["Gemma-2-27B", "derivation"] == "scratch"


def test_a_rounded_size_widens_the_density_by_what_it_leaves_open() -> None:
    reference = load_reference("qwen1.5", "mmlu")
    row = {"model": "m", "params_total": 1e9, "score": 0.45, "score_se": 1e-4}
    exact = estimate_density(pd.DataFrame([row]), reference)
    rounded = estimate_density(pd.DataFrame([{**row, "params_lo": 0.5e9, "params_hi": 1.5e9}]), reference)
    assert rounded.table["density"].item() == exact.table["density"].item()
    shift = (rounded.draws - exact.draws)[:, 0]
    # Evenly between the sizes: the draws of ln(1e9 / N) reach from ln(1 / 1.5) to ln 2.
    assert np.log(1 / 1.5) <= shift.min() < -0.38 and 0.65 < shift.max() <= np.log(2)
    assert np.exp(-shift).mean() == pytest.approx(1.0, abs=0.03)
    for lo, hi in (("density_lo", "density_hi"), ("density_lo_recipe", "density_hi_recipe")):
        assert rounded.table[lo].item() < exact.table[lo].item() < exact.table[hi].item() < rounded.table[hi].item()
    assert rounded.table[["n_eff_lo", "n_eff_hi"]].equals(exact.table[["n_eff_lo", "n_eff_hi"]])
    np.testing.assert_array_equal(rounded.law_draws, exact.law_draws)


def test_a_limit_of_a_rounded_size_stays_a_limit() -> None:
    reference = load_reference("qwen1.5", "mmlu")
    row = {"model": "m", "params_total": 1e9, "score": 0.25, "score_se": 1e-4, "params_lo": 0.5e9, "params_hi": 1.5e9}
    result = estimate_density(pd.DataFrame([row]), reference)
    assert result.table[["status", "bound", "density_lo"]].iloc[0].tolist() == ["below_floor", "upper", 0.0]
    assert (result.draws[:, 0] == result.log_limits[0, 0]).all()


def test_densities_of_the_catalog_state_what_their_sizes_rest_on() -> None:
    catalog = load_catalog()
    table = catalog_densities(catalog, load_reference("qwen1.5", "mmlu")).table.set_index("model")
    assert table.loc["Falcon-7B", ["params_basis", "params_lo", "params_hi"]].tolist() == ["label", 6.5e9, 7.5e9]
    assert table.loc["Llama-1-65B", "params_basis"] == "count"
    # What is known of the total says nothing of a size without embeddings.
    other = catalog_densities(catalog, load_reference("qwen1.5", "mmlu"), denominator="non_embedding").table
    assert other["params_basis"].isna().all() and other["params_lo"].isna().all()
