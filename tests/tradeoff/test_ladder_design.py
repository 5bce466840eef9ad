"""A designed ladder resolves what it says, in ladders simulated from its law and noise; what cannot be is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from densing.cli import app
from densing.core import InputError, UnknownNameError
from densing.scores.ladder import Generated, arm_runs, coverage, get_preset
from densing.tradeoff import design_ladder, device_estimate, read_arms
from tests.support.budget import FULL, may_be
from tests.support.command import printed
from tests.support.gain_records import arm, record, written


def test_the_command_prints_a_ladder_its_cost_and_how_to_train_it() -> None:
    said = CliRunner().invoke(app, ["ladder", "plan", "--resolve", "0.2", "--json"], catch_exceptions=False)
    found = printed(said.stdout)
    first, *others = found["designs"]
    assert first["half_width"] <= math.log(1.2) and first["seeds"] * len(first["sizes"]) >= 6
    assert all(other["core_hours"] >= first["core_hours"] for other in others)
    assert found["noise_of"] == "the shipped record rounds"
    shown = CliRunner().invoke(app, ["ladder", "plan", "--resolve", "0.2"], catch_exceptions=False)
    assert "densing ladder train --preset cpu" in " ".join(shown.output.split())
    assert f"--seeds 0..{first['seeds'] - 1}" in " ".join(shown.output.split())
    # What the answer rests on: the record holds two of four sds, and says so of the others.
    assert found["noise_assumed"] == ["spread", "ripple"]
    assert "measured in the shipped record rounds: 0.82 % between an arm's run and its plain one" in shown.stdout
    assert "assumed, since that record does not hold it: 2.0 % between plain runs" in shown.stdout


def test_a_finer_resolution_costs_more_and_less_noise_less(tmp_path: Path) -> None:
    shipped = design_ladder(0.15)
    coarse, fine = design_ladder(0.3).designs[0], shipped.designs[0]
    assert fine.core_hours > coarse.core_hours
    quiet = record(arm("co2:tau=8", 0.5, 125.0))
    speed = {"bytes": 1.0, "tokens_per_core_second": 94_000.0}
    noise = {name: sd / 2 for name, sd in shipped.noise.items()}
    quiet["spec"] |= {"noise": noise, "law": dict(shipped.law), "baseline_cost": speed}
    mine = design_ladder(0.15, gain=written(tmp_path, quiet))
    assert mine.designs[0].core_hours < fine.core_hours
    assert mine.noise_of.endswith("gain.json")
    assert mine.noise_assumed == () and "assumed" not in mine.card().facts["noise"]


def test_what_cannot_be_designed_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a share above 0"):
        design_ladder(0)
    with pytest.raises(InputError, match="a ratio above 0"):
        design_ladder(0.1, ratio=-1)
    with pytest.raises(InputError, match="of preset cpu, and noise differs"):
        design_ladder(0.1, preset="tiny")
    with pytest.raises(InputError, match="no ladder of preset cpu with up to 48 seeds"):
        design_ladder(0.001)
    with pytest.raises(InputError, match="keeps no law or noise"):
        design_ladder(0.1, gain=written(tmp_path, record(arm("co2:tau=8", 0.5, 125.0))))
    with pytest.raises(InputError, match="--budgets 9: preset cpu has 4"):
        get_preset("cpu").shorter(9)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_ladders_as_designed_resolve_what_was_asked(ratio: float) -> None:
    found, ladders = design_ladder(0.1, ratio=ratio), 200 if FULL else 24
    for design in found.designs[:2]:
        sizes = [float(shape.non_embedding) for shape in get_preset("cpu").shapes if shape.name in design.sizes]
        like = {"sizes": sizes, "budgets": design.tokens, "seeds": design.seeds, "theta": found.law, **found.noise}
        simulated = coverage(ladders=ladders, seed=77_000, tau=ratio, **like)
        assert simulated["half_width"] <= math.log(1.1)
        assert may_be(simulated["held"], ladders)[1] >= 0.95
        # Nor is more trained than is needed: half the runs would not do.
        assert simulated["half_width"] >= math.log(1.1) / math.sqrt(2)
    assert json.loads(json.dumps(found.to_dict(), default=str))["ratio"] == ratio


def test_an_estimate_adds_up_and_is_in_step_with_operations_and_bandwidth() -> None:
    preset, corpus = get_preset("gpu"), Generated()

    def of(ranks: int, device: str = "H200", sizes: tuple[str, ...] = ("0.1B",), seeds: int = 1) -> float:
        runs = arm_runs(preset, corpus, read_arms(["plain"], ranks), sizes=list(sizes), seeds=range(seeds))
        found = device_estimate(runs, device)
        assert found.minutes == pytest.approx(sum(row.minutes for row in found.rows))
        [row] = found.rows
        assert row.minutes == pytest.approx(seeds * runs[0].work * row.step_s / 60) and row.runs == seeds
        assert found.low < found.minutes < found.high and {note.code for note in found.notes} >= {"never-measured"}
        # No device does more operations than its peak: six per parameter and token.
        peak = {"H200": 989.4e12, "A100-80GB": 312e12}[device]
        assert row.step_s > 6 * row.parameters * preset.shapes[-1].batch * preset.block / peak or sizes != ("0.1B",)
        return found.minutes

    one = of(1)
    assert of(4) > of(2) > one and of(1, seeds=3) == pytest.approx(3 * one)
    assert of(1, "A100-80GB") > one > of(1, sizes=("0.03B",))
    # Three further ranks have three optimizers more, and nothing else.
    assert of(4) - one == pytest.approx(3 * (of(2) - one))
    with pytest.raises(UnknownNameError, match="Abacus"):
        device_estimate(arm_runs(preset, corpus, read_arms(["plain"], 1), seeds=[0]), "Abacus")


def test_the_command_estimates_and_trains_nothing(tmp_path: Path) -> None:
    words = ["ladder", "train", "--preset", "gpu", "--estimate", "h200", "--seeds", "2", "--out", str(tmp_path / "x")]
    found = printed(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert found["device"] == "H200" and [row["runs"] for row in found["rows"]] == [2] * 4
    shown = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "estimate of the cost model, not measured" in shown.stdout and not list(tmp_path.iterdir())
