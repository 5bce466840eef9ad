"""Which row of a table of densities a condition reads, and what its interval decides."""

from __future__ import annotations

import pandas as pd
import pytest

from densing.core import InputError, worst
from densing.scores.density.gate import check_densities, notes_on
from densing.scores.density.runs import RunDensities, run_densities


def row(model: str, benchmark: str, quantity: str, ends: tuple[float, float], status: str = "ok") -> dict[str, object]:
    """A row whose density lies in the middle of its interval; sizes are a thousand times densities."""
    low, high = ends
    end = {"lo": low, "hi": high}
    middle = (low + high) / 2
    return {
        "model": model, "benchmark": benchmark, "quantity": quantity, "status": status, "bound": "",
        "density": middle, "n_eff": 1000 * middle,
        **{f"density_{side}": value for side, value in end.items()},
        **{f"density_{side}_recipe": value for side, value in end.items()},
        **{f"n_eff_{side}": 1000 * value for side, value in end.items()},
    }  # fmt: skip


TABLE = pd.DataFrame(
    [
        row("one", "piqa", "score", (0.1, 0.2)),
        row("one", "piqa", "loss", (0.3, 0.4)),
        row("one", "sciq", "loss", (0.5, 0.6)),
        row("one", "combined", "score", (0.6, 0.7)),
        row("one", "combined", "loss", (0.7, 0.9)),
        row("two", "piqa", "score", (2.0, 3.0)),
    ]
)


@pytest.mark.parametrize(
    ("condition", "verdicts"),
    [
        # The combined row of several benchmarks, its loss first; the only row where there is one.
        ("density<0.65", ([], [])),
        ("density<0.8", (["undecided"], [])),
        ("density<0.95", (["met"], [])),
        ("density>1.5", ([], ["met"])),
        ("score.density<0.65", (["undecided"], [])),
        ("score.density<0.8", (["met"], [])),
        # One benchmark of several, and one quantity of it.
        ("piqa.density<0.35", (["undecided"], [])),
        ("piqa.score.density<0.25", (["met"], [])),
        ("combined.loss.density<0.95 and piqa.loss.density<0.5", (["met"], ["undecided"])),
        # An end is a number, and decides.
        ("density_hi<0.8", ([], [])),
        ("density_lo<0.8", (["met"], [])),
        ("density_hi_recipe<1", (["met"], [])),
        ("n_eff<800", (["undecided"], [])),
        # What one model was not measured on is undefined for it: nothing is known, and it fails.
        ("sciq.density<0.1", ([], ["undecided"])),
    ],
)
def test_a_condition_reads_one_row(condition: str, verdicts: tuple[list[str], list[str]]) -> None:
    hits = check_densities(TABLE, [condition])
    assert tuple([hit.verdict for hit in hits[name]] for name in ("one", "two")) == verdicts


def test_several_benchmarks_without_a_combined_row_must_be_named() -> None:
    parts = TABLE[TABLE["model"].eq("one") & TABLE["benchmark"].ne("combined")]
    with pytest.raises(InputError, match=r"no density of all benchmarks together.*piqa\.density"):
        check_densities(parts, ["density<1"])
    assert [hit.verdict for hit in check_densities(parts, ["sciq.density<1"])["one"]] == ["met"]


def test_a_limit_is_decided_by_its_open_interval_and_named() -> None:
    floor = pd.DataFrame([row("low", "piqa", "loss", (0.0, 0.05), "below_floor") | {"bound": "upper"}])
    [surely, perhaps] = check_densities(floor, ["density<0.8", "density<0.01"])["low"]
    assert (surely.verdict, perhaps.verdict) == ("met", "undecided")
    assert surely.message.startswith("low: density<0.8: density is 0.025, between 0 and 0.05; score at or below the")
    ceiling = pd.DataFrame([row("high", "piqa", "loss", (100.0, float("inf")), "above_ceiling") | {"bound": "lower"}])
    assert check_densities(ceiling, ["density<0.8"])["high"] == ()
    assert [hit.verdict for hit in check_densities(ceiling, ["density>120"])["high"]] == ["undecided"]


def run_of(**losses: float) -> RunDensities:
    """Densities of one model by its loss on each of the ladder's benchmarks."""
    rows = [
        {"model": "mine", "task": f"olmo_ladder_{name}", "benchmark": name, "metric": "bits_per_byte",
         "value": value, "stderr": 0.01, "n_items": 1800}
        for name, value in losses.items()
    ]  # fmt: skip
    return run_densities(pd.DataFrame(rows), pd.DataFrame([{"model": "mine", "params_non_embedding": 3e8}]))


def test_the_gate_reads_the_table_of_a_run() -> None:
    table = run_of(piqa=1.1, csqa=1.0).table
    combined = table[table["benchmark"].eq("combined")].iloc[0]
    low, high = combined["density_lo"], combined["density_hi"]
    conditions = [f"density<{low * 0.99}", f"density<{(low + high) / 2}", f"density<{high * 1.01}"]
    assert [hit.verdict for hit in check_densities(table, conditions)["mine"]] == ["undecided", "met"]


def test_doubts_about_what_no_condition_reads_are_left_out() -> None:
    """The ladder's curve of HellaSwag does not fit: an error for that benchmark, none for the combined density."""
    result = run_of(piqa=1.1, hellaswag=0.9)
    assert worst(result.notes) == worst(notes_on(result, ["hellaswag.density<1"])) == "error"
    for condition in ("density<1", "piqa.density<1", "combined.loss.density_hi<1"):
        assert worst(notes_on(result, [condition])) != "error"
    # What is said of the run itself stays.
    left_out = {note.message for note in result.notes} - {note.message for note in notes_on(result, ["density<1"])}
    assert left_out and all("olmo-ladder, hellaswag:" in text or "olmo-ladder, piqa:" in text for text in left_out)
