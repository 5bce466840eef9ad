"""The frontier against a second implementation and closed forms; scales apart; and what cannot be placed says so."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import densing
from densing.core import ArtefactError, InputError, UnknownNameError
from densing.scores.joint import JointScale
from densing.tradeoff import DensityCost, Frontier, join
from densing.tradeoff.pareto import COLUMNS, DRAWS, non_dominated
from tests.support.gain_records import arm, record, written

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"
# Few values, so that ties are common.
FEW = st.integers(-2, 3).map(float)


def run(name: str, density: float, hours: float, spread: float | None = 0.1, **more: Any) -> DensityCost:
    ends = (None, None) if spread is None else (density * (1 - spread), density * (1 + spread))
    return DensityCost(name, density, *ends, more.pop("benchmark", "mmlu"), None, hours, **more)


def placed(*profiles: Any, **options: Any) -> Frontier:
    return densing.frontier(cost=options.pop("cost", "device_hours"), profiles=profiles, **options)


def arms(folder: Path, *figures: dict[str, Any], cost: str = "bytes", **more: Any) -> Frontier:
    return densing.frontier(cost=cost, gains=[written(folder, record(*figures, **more))])


def by_hand(density: list[float], cost: list[float]) -> list[bool]:
    """Compare everything with everything, as the definition says."""
    points = list(zip(density, cost, strict=True))
    return [not any(r >= rho and c <= paid and (r, c) != (rho, paid) for r, c in points) for rho, paid in points]


@given(st.lists(st.tuples(FEW, FEW), max_size=12))
def test_the_frontier_is_what_comparing_all_pairs_gives(points: list[tuple[float, float]]) -> None:
    density, cost = [p[0] for p in points], [p[1] for p in points]
    assert non_dominated(np.array(density), np.array(cost)).tolist() == by_hand(density, cost)


@given(stn.arrays(float, st.tuples(st.integers(1, 4), st.just(6)), elements=FEW), st.lists(FEW, min_size=6, max_size=6))
def test_each_draw_has_a_frontier_of_its_own(draws: np.ndarray, cost: list[float]) -> None:
    on = non_dominated(draws, np.array(cost))
    assert on.tolist() == [by_hand(row.tolist(), cost) for row in draws]
    assert on.any(axis=1).all(), "something is always on it"


def test_runs_are_placed_by_hand() -> None:
    result = placed(
        run("b", 2.0, 30.0), run("a", 1.0, 10.0), run("c", 2.0, 40.0), run("d", 0.5, 5.0), run("e", 0.4, 5.0)
    )
    assert list(result.table.columns) == list(COLUMNS)
    assert result.front(result.scales[0])["name"].tolist() == ["d", "a", "b"]
    assert set(result.table["evidence"]) == {"device_hours stated"}
    assert result.table[["flops", "bytes", "joules"]].isna().all(axis=None)
    assert "5 rows with density and device hours; on the frontier, cheapest first: d (0.50), a (1.0)" in repr(result)
    assert json.dumps(densing.core.plain(result.to_dict()))


def test_shares_are_the_chance_that_nothing_cheaper_is_as_dense() -> None:
    # ln density is normal and independent: the chance has a closed form.
    result = placed(run("cheap", 1.0, 10.0, 0.3), run("dear", 1.2, 20.0, 0.4))
    half = NormalDist().inv_cdf(0.975)
    middle, sd = zip(
        *[((math.log(lo) + math.log(hi)) / 2, (math.log(hi) - math.log(lo)) / 2 / half)
          for lo, hi in zip(result.table["density_lo"], result.table["density_hi"], strict=True)], strict=True,
    )  # fmt: skip
    chance = NormalDist().cdf((middle[1] - middle[0]) / math.hypot(*sd))
    shares = dict(zip(result.table["name"], result.table["share"], strict=True))
    assert shares["cheap"] == 1
    assert shares["dear"] == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / DRAWS))
    other = placed(run("dear", 1.2, 20.0, 0.4), run("far", 0.1, 900.0), run("cheap", 1.0, 10.0, 0.3))
    assert dict(zip(other.table["name"], other.table["share"], strict=True))["dear"] == shares["dear"]


def test_what_is_equal_does_not_exclude_itself_and_what_is_twice_is_said() -> None:
    twins = placed(run("a", 1.0, 10.0, None), run("b", 1.0, 10.0, None))
    assert twins.table["on_frontier"].all()
    assert twins.table["share"].isna().all()
    assert "no-interval" in {note.code for note in twins.notes}
    again = placed(run("a", 1.0, 10.0), run("a", 1.0, 10.0), run("a", 1.5, 10.0))
    assert len(again.table) == 2
    assert {"repeated", "namesakes"} <= {note.code for note in again.notes}


def test_references_and_ladders_are_scales_of_their_own(tmp_path: Path) -> None:
    gain = written(tmp_path, record(arm("co2:tau=8", 0.8, 36.0)))
    runs = [run("a", 5.0, 1e-9), run("b", 0.1, 9.0, reference="joint"), run("c", 0.2, 9.0, benchmark="gsm8k")]
    result = densing.frontier(cost="device_hours", profiles=runs, gains=[gain])
    assert result.scales == (
        "reference not stated, mmlu", "joint, mmlu", "reference not stated, gsm8k", "ratio to plain, ladder ab12cd34",
    )  # fmt: skip
    assert result.table["on_frontier"].all(), "each is alone, or cheaper than the baseline"
    other = written(tmp_path, record(arm("co2:tau=8", 0.8, 36.0), digest="f" * 64), "other.json")
    assert len(densing.frontier(cost="bytes", gains=[gain, other]).scales) == 2


def test_arms_stand_beside_their_baseline(tmp_path: Path) -> None:
    figures = [arm("local-sgd:tau=8", 0.9, 125.0), arm("worse", 0.8, 500.0), arm("better", 1.2, 2000.0),
               arm("unclear", 1.5, 100.0, status="flat"), arm("open", None, 100.0, status="few_pairs"),
               arm("unpaid", 1.1, None)]  # fmt: skip
    result = arms(tmp_path, *figures)
    rows = result.table.set_index("name")
    assert result.front(result.scales[0])["name"].tolist() == ["local-sgd:tau=8", "plain", "better"]
    assert rows["status"].to_dict() == {
        "plain": "ok", "local-sgd:tau=8": "ok", "worse": "ok", "better": "ok", "unclear": "flat", "open": "few_pairs",
        "unpaid": "no cost",
    }  # fmt: skip
    assert rows.loc["plain", ["density", "bytes", "joules"]].tolist() == [1.0, 1000.0, 50.0]
    assert rows.loc["plain", "device_hours"] == pytest.approx(0.01) and math.isnan(rows.loc["plain", "flops"])
    assert rows.loc["worse", "evidence"] == (
        "bytes counted; device_hours measured: one process for all ranks; joules stated: 15 W per busy core"
    )
    # Seconds over a link are a simulation's, and of how many devices the record does not say.
    linked = record(*figures)
    linked["spec"]["link"] = "100mbit"
    there = densing.frontier(cost="joules", gains=[written(tmp_path, linked)])
    assert there.table["device_hours"].isna().all() and there.scales


def test_costs_over_other_runs_than_the_baselines_are_named(tmp_path: Path) -> None:
    notes = arms(tmp_path, arm("short", 0.9, 10.0, pairs=6), arm("whole", 0.9, 20.0)).notes
    (note,) = [note for note in notes if note.code == "unequal-runs"]
    assert note.details["arms"] == ["short"]


def test_gains_of_this_process_and_of_its_file_say_the_same(tmp_path: Path) -> None:
    from densing.core import decode
    from densing.tradeoff import GainRecord

    data = record(arm("a", 0.9, 10.0))
    held = densing.frontier(cost="bytes", gains=[decode(data, GainRecord)])
    pd.testing.assert_frame_equal(held.table, arms(tmp_path, arm("a", 0.9, 10.0)).table)


def test_a_run_keeps_its_reference() -> None:
    row = {"model": "mine", "benchmark": "mean", "reference": "joint", "density": 1.5, "density_lo": 1.2,
           "density_hi": 1.9, "status": "ok", "bound": ""}  # fmt: skip
    joined = join([row], device_hours=500.0)
    assert placed(joined).scales == ("joint, mean",)


def test_limits_are_shown_and_not_compared() -> None:
    limits = [run("below", 3.0, 1.0, bound="upper"), run("above", 1.0, 1.0, bound="lower"), run("a", 2.0, 10.0)]
    result = placed(*limits)
    assert result.table.set_index("name")["status"].to_dict() == {"below": "limit", "above": "limit", "a": "ok"}
    (doubt,) = [note for note in result.notes if note.code == "limits-beside"]
    assert doubt.details["names"] == ["a"]
    assert not [n for n in placed(run("low", 1.0, 1.0, bound="upper"), run("a", 2.0, 10.0)).notes
                if n.code == "limits-beside"]  # fmt: skip


def test_models_have_the_flops_of_their_tokens() -> None:
    result = densing.frontier(reference="qwen1.5", benchmark="mmlu")
    catalog, table = densing.load_catalog(), result.table
    facts = catalog.models.set_index("model").loc[table["name"]]
    told = facts["tokens_t"].notna().to_numpy()
    assert told.any() and (~told).any()
    flops = 6 * facts["params_active_b"].fillna(facts["params_total_b"]) * facts["tokens_t"] * 1e21
    np.testing.assert_allclose(table["flops"], flops.astype(float))
    assert (table["status"].eq("no cost") == (~told & table["bound"].eq(""))).all()
    ok = table[table["status"].eq("ok")]
    assert ok["on_frontier"].tolist() == by_hand(ok["density"].tolist(), ok["flops"].tolist())
    reference = densing.load_reference("qwen1.5", "mmlu")
    draws = densing.catalog_densities(catalog, reference).headline.draws[:, ok.index]
    some = [by_hand(row.tolist(), ok["flops"].tolist()) for row in draws[:40]]
    assert non_dominated(draws[:40], ok["flops"].to_numpy()).tolist() == some
    np.testing.assert_allclose(ok["share"], non_dominated(draws, ok["flops"].to_numpy()).mean(axis=0))


def test_the_usual_reference_is_the_joint_scale(embedded_scale: JointScale) -> None:
    selection = densing.Selection(since="2024-06-01")
    result = densing.frontier(selection=selection)
    assert result.scales == ("joint, mean",) and set(result.table["source"]) == {"catalog"}
    front = result.front("joint, mean")
    assert front["density"].is_monotonic_increasing and len(front) > 1 and len(embedded_scale) > 100


def test_without_tokens_there_is_no_frontier_and_a_sentence() -> None:
    catalog = densing.load_catalog()
    silent = dataclasses.replace(catalog, models=catalog.models.assign(tokens_t=np.nan))
    result = densing.frontier(silent, reference="qwen1.5", benchmark="mmlu")
    assert result.scales == () and not result.table["on_frontier"].any()
    assert "there is no frontier" in next(note.message for note in result.notes if note.code == "no-frontier")
    assert "no frontier" in repr(result)
    with pytest.raises(InputError, match="nothing to place"):
        densing.frontier(selection=densing.Selection(since="2030-01-01"), reference="qwen1.5", benchmark="mmlu")


def test_tokens_that_nobody_stated_are_named() -> None:
    catalog = densing.load_catalog()
    models = catalog.models.assign(tokens_source="recalled#training tokens")
    result = densing.frontier(dataclasses.replace(catalog, models=models), reference="qwen1.5", benchmark="mmlu")
    (note,) = [note for note in result.notes if note.code == "recalled-tokens"]
    assert set(note.details["names"]) == set(result.front("qwen1.5, mmlu")["name"])


def test_names_are_harmless(tmp_path: Path) -> None:
    result = arms(tmp_path, arm(HOSTILE, 0.9, 10.0))
    assert "\x1b" not in repr(result) and "<img" not in result._repr_html_()


def test_errors_name_the_remedy() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'joules'"):
        placed(run("a", 1.0, 1.0), cost="joule")
    with pytest.raises(InputError, match="swap them"):
        placed(dataclasses.replace(run("a", 1.0, 1.0), density_lo=2.0, density_hi=1.0))
    with pytest.raises(InputError, match="of bytes the catalog knows nothing: give --density or --gain"):
        densing.frontier(cost="bytes")
    result = placed(run("a", 1.0, 1.0), cost="joules")
    assert "of runs of one's own device hours are known" in " ".join(note.message for note in result.notes)
    with pytest.raises(UnknownNameError, match="scale"):
        result.front("elsewhere")
    assert issubclass(ArtefactError, InputError)
