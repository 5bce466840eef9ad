"""Training a split decoder on two real ranks: it learns, resumes bit by bit, and schedules agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.parallel.distributed.lm import build_lm
from densing.efficiency.parallel.distributed.spec import LmShape, RunEnv, RunRecord, RunSpec
from densing.efficiency.parallel.tensor_parallel.train import train_tensor_parallel
from densing.efficiency.systems.registry import get_technique
from tests.support import folders
from tests.support.gloo_ranks import ranks_of
from tests.support.tensor_schedules import schedule_of

pytestmark = pytest.mark.slow

RUNS = folders.SUPPORT / "tensor_parallel_runs.py"
SHAPE = LmShape(layers=2, hidden=32, heads=2, ffn=48)
STEPS = 12


def spec(technique: str, out: Path, **more: object) -> RunSpec:
    plain = {"steps": STEPS, "model": SHAPE, "batch": 4, "sequence": 32, "lr": 1e-2, "trace_steps": 0}
    return RunSpec(technique, out=str(out), corpus=str(out.parent / "text.txt"), **{**plain, **more})  # type: ignore[arg-type]


def write_text(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("The residual stream of a ladder is read one module early. " * 300)


def run_all(folder: Path, specs: list[RunSpec], world: int = 2) -> list[list[RunRecord]]:
    """Run one spec after the other; return the ranks' records of each."""
    (folder / "spec.json").write_bytes(msgspec.json.encode(specs))
    ranks_of(str(RUNS), world, folder, "train")
    return [
        [
            msgspec.json.decode((folder / f"record.{number}.{rank}.json").read_bytes(), type=RunRecord)
            for rank in range(world)
        ]
        for number in range(len(specs))
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RunRecord]]:
    folder = tmp_path_factory.mktemp("runs")
    write_text(folder)
    specs = {
        "tensor-parallel": spec("tensor-parallel", folder / "a"),
        "parallel-attention": spec("parallel-attention", folder / "b"),
        "ladder": spec("ladder", folder / "c"),
        "iso": spec("iso", folder / "d", knobs={"split": 0.4}),
        "t3": spec("t3", folder / "e", knobs={"tiles": 2}),
        "prefill": spec("ladder", folder / "f", knobs={"mode": "prefill"}),
        "first half": spec("ladder", folder / "g", steps=7, checkpoint_every=7),
        "second half": spec("ladder", folder / "g"),
    }
    return dict(zip(specs, run_all(folder, list(specs.values())), strict=True))


@pytest.mark.parametrize("name", ["tensor-parallel", "parallel-attention", "ladder", "iso", "t3"])
def test_it_learns(runs: dict[str, list[RunRecord]], name: str) -> None:
    first, second = runs[name]
    assert first.losses == second.losses
    assert len(first.losses) == STEPS
    assert first.losses[-1] < first.losses[0] - 1
    assert first.final_loss < first.losses[0] - 1
    assert first.final_loss == second.final_loss
    whole = build_lm(SHAPE, 32, 0, "parallel-attention" if name == "parallel-attention" else "standard")
    assert first.parameters == sum(weight.numel() for weight in whole.parameters())
    assert first.tokens == 4 * 32


def test_lossless_schedules_follow_the_standard_one(runs: dict[str, list[RunRecord]]) -> None:
    standard = runs["tensor-parallel"][0].losses
    assert runs["iso"][0].losses == pytest.approx(standard, rel=1e-3)
    assert runs["t3"][0].losses == pytest.approx(standard, rel=1e-3)
    assert runs["ladder"][0].losses != pytest.approx(standard, rel=1e-3)


def test_resumed_equals_unbroken_bit_by_bit(runs: dict[str, list[RunRecord]]) -> None:
    whole, resumed = runs["ladder"], runs["second half"]
    assert resumed[0].resumed_from == 7
    assert [rank.losses for rank in resumed] == [rank.losses for rank in whole]
    assert resumed[0].final_loss == whole[0].final_loss


def test_prefill_trains_nothing(runs: dict[str, list[RunRecord]]) -> None:
    record = runs["prefill"][0]
    assert record.losses[0] == pytest.approx(runs["ladder"][0].losses[0], rel=1e-6)
    assert min(record.losses) > record.losses[0] - 0.1
    assert record.extra["forward_only"] == 1
    assert runs["ladder"][0].extra["forward_only"] == 0


def test_figures_of_the_sums(runs: dict[str, list[RunRecord]]) -> None:
    buffer = 4 * 32 * SHAPE.hidden * 4
    counts = {name: (record[0].extra["ar_count"], record[0].extra["ar_bytes"]) for name, record in runs.items()}
    # 2 layers, two sums each and direction.
    assert counts["tensor-parallel"] == counts["ladder"] == counts["second half"] == (8, 8 * buffer)
    assert counts["parallel-attention"] == (4, 4 * buffer)
    assert counts["prefill"] == (4, 4 * buffer)
    assert counts["iso"] == counts["t3"] == (16, 8 * buffer)
    for record in runs.values():
        assert record[0].extra["comm_s"] > 0
        assert all(0 <= wait <= step for wait, step in zip(record[0].wait_s, record[0].step_s, strict=True))


def test_the_stand_in_says_so(runs: dict[str, list[RunRecord]]) -> None:
    assert runs["t3"][0].stand_in == "tile-wise decomposition in software, not T3"
    assert runs["iso"][0].stand_in == ""


@pytest.mark.parametrize(
    ("name", "knobs", "word"),
    [
        ("iso", {"split": 1.0}, "split is 1.0"),
        ("t3", {"tiles": 0}, "tiles is 0"),
        ("t3", {"tiles": 2.5}, "tiles is 2.5"),
        ("ladder", {"ladder_layers": 5}, "ladder_layers is 5"),
        ("ladder", {"ladder_layers": 1.5}, "ladder_layers is 1.5"),
        ("iso", {"split": "half"}, "split is 'half'"),
    ],
)
def test_bad_knobs_are_refused(tmp_path: Path, name: str, knobs: dict[str, object], word: str) -> None:
    write_text(tmp_path)
    with pytest.raises(InputError, match=word):
        train_tensor_parallel(RunEnv(spec(name, tmp_path / "out"), 0, 1), schedule_of(name, **knobs))


def test_knobs_of_other_schedules_are_refused(tmp_path: Path) -> None:
    ladder: Any = get_technique("ladder")
    with pytest.raises(UnknownNameError, match="unknown knob of ladder: 'split'"):
        ladder.run(RunEnv(spec("ladder", tmp_path / "out"), 0, 1), split=0.5)
    with pytest.raises(UnknownNameError, match="did you mean 'iso'"):
        schedule_of("is", split=0.5)


def test_one_rank_needs_no_group(runs: dict[str, list[RunRecord]], tmp_path: Path) -> None:
    write_text(tmp_path)
    record = train_tensor_parallel(RunEnv(spec("ladder", tmp_path / "out", nproc=1), 0, 1), schedule_of("ladder"))
    assert record.losses == pytest.approx(runs["ladder"][0].losses, rel=1e-3)
    assert record.extra["ar_count"] == 0
    assert record.parameters == runs["ladder"][0].parameters


def test_unknown_mode_and_unshared_heads_are_refused(tmp_path: Path) -> None:
    write_text(tmp_path)
    with pytest.raises(UnknownNameError, match="prefill"):
        train_tensor_parallel(RunEnv(spec("iso", tmp_path / "out"), 0, 1), schedule_of("iso"), mode="prefil")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="heads 2 cannot be shared by 3"):
        train_tensor_parallel(RunEnv(spec("iso", tmp_path / "out"), 0, 3), schedule_of("iso"))
