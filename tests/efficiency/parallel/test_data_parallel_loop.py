"""The loop of real runs in one process: text, clock, checkpoints, traces; what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from densing.core.errors import DensingError

torch = pytest.importorskip("torch")

from densing.efficiency.parallel.data_parallel.link import members  # noqa: E402
from densing.efficiency.parallel.data_parallel.train import train_data_parallel  # noqa: E402
from densing.efficiency.parallel.distributed import lm  # noqa: E402
from densing.efficiency.parallel.distributed.loop import Checkpoints, Clock, run  # noqa: E402
from densing.efficiency.parallel.distributed.spec import LmShape, RunEnv, RunSpec  # noqa: E402
from densing.efficiency.systems.registry import get_technique  # noqa: E402


class Toy:
    """A trainee whose loss says which batches it has seen."""

    data_rank, data_ranks, parameters, stand_in = 0, 1, 1, "a toy"

    def __init__(self, spoilt_at: int = -1) -> None:
        self.total, self.taken, self.spoilt_at, self.finished = 0.0, 0, spoilt_at, 0

    def step(self, batch: Any) -> float:
        self.total += float(batch.sum())
        self.taken += 1
        return float("nan") if self.taken - 1 == self.spoilt_at else self.total

    def finish(self) -> None:
        self.finished += 1

    def evaluate(self, batches: Any) -> float:
        return float(sum(int(batch.sum()) for batch in batches))

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "taken": self.taken}

    def load_state_dict(self, state: Any) -> None:
        self.total, self.taken = state["total"], state["taken"]

    def figures(self) -> dict[str, float]:
        return {"taken": float(self.taken)}


def corpus_file(folder: Path, size: int = 20_000) -> str:
    path = folder / "words.txt"
    path.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)))
    return str(path)


def environment(folder: Path, **changes: Any) -> RunEnv:
    options = {"steps": 10, "batch": 2, "sequence": 16, "trace_steps": 0, "corpus": corpus_file(folder)}
    spec = RunSpec("toy", **{**options, "out": str(folder / "out"), **changes})
    return RunEnv(spec, 0, 1)


def test_a_run_is_its_steps_and_its_held_out_loss(tmp_path: Path) -> None:
    toy = Toy()
    record = run(environment(tmp_path), lambda clock: toy)
    assert len(record.losses) == len(record.step_s) == len(record.wait_s) == 10
    assert (record.tokens, record.stand_in, record.resumed_from, toy.finished) == (32, "a toy", -1, 1)
    assert record.extra["taken"] == 10
    about = json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert (about["train_bytes"], about["held_out_bytes"]) == (19_000, 1_000)


@pytest.mark.parametrize("stop", [4, 7, 10])
def test_a_run_goes_on_from_its_newest_checkpoint(tmp_path: Path, stop: int) -> None:
    whole = run(environment(tmp_path, out=str(tmp_path / "whole")), lambda clock: Toy())
    with pytest.raises(DensingError, match=f"step {stop - 1}: the loss is nan"):
        run(environment(tmp_path, checkpoint_every=3), lambda clock: Toy(stop - 1))
    record = run(environment(tmp_path, checkpoint_every=3), lambda clock: Toy())
    assert record.resumed_from == (stop - 1) // 3 * 3
    assert record.losses == whole.losses
    assert len(record.step_s) == 10
    assert len(list((tmp_path / "out" / "checkpoints").iterdir())) == 1
    # A finished run asked for again has nothing left to do.
    again = run(environment(tmp_path, steps=9), lambda clock: Toy())
    assert again.losses == whole.losses[:9]


def test_fewer_steps_than_were_taken_are_refused(tmp_path: Path) -> None:
    run(environment(tmp_path, checkpoint_every=5), lambda clock: Toy())
    with pytest.raises(DensingError, match="is already at step 10"):
        run(environment(tmp_path, steps=8), lambda clock: Toy())


def test_another_runs_checkpoint_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    run(environment(tmp_path, checkpoint_every=5), lambda clock: Toy())
    with pytest.raises(DensingError, match="written with seed=0, but this run has 3; resume with the same"):
        run(environment(tmp_path, seed=3), lambda clock: Toy())
    (file,) = (tmp_path / "out" / "checkpoints").rglob("*.pt")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DensingError, match=r"damaged checkpoint .* delete step00000010"):
        run(environment(tmp_path), lambda clock: Toy())


def test_a_step_counts_once_every_rank_has_written_it(tmp_path: Path) -> None:
    spec = environment(tmp_path).spec
    ranks = [Checkpoints(RunEnv(spec, rank, 2)) for rank in range(2)]
    ranks[0].save(4, {"x": 1})
    assert ranks[1].newest() == -1
    ranks[1].save(4, {"x": 2})
    ranks[0].save(8, {"x": 3})
    assert ranks[1].newest() == 4
    assert ranks[1].load(4) == {"x": 2}
    ranks[1].save(8, {"x": 4})
    assert ranks[0].newest() == 8
    ranks[0].save(12, {"x": 5})
    assert sorted(path.parent.name for path in tmp_path.rglob("*.pt")) == ["step00000008"] * 2 + ["step00000012"]


@pytest.mark.parametrize(("steps", "traced"), [(6, 3), (3, 8), (1, 2), (2, 1)])
def test_the_last_steps_are_recorded(tmp_path: Path, steps: int, traced: int) -> None:
    run(environment(tmp_path, steps=steps, trace_steps=traced), lambda clock: Toy())
    assert [file.name for file in (tmp_path / "out" / "traces").iterdir()] == ["rank00000.pt.trace.json.gz"]


def test_batches_depend_on_seed_rank_and_step_only() -> None:
    data, _ = lm.load_bytes()
    key = {"batch": 3, "sequence": 20, "seed": 1, "rank": 2, "step": 3}
    first = lm.batches(data, **key)
    assert first.shape == (3, 21)
    assert first.dtype == np.int64
    assert np.array_equal(first, lm.batches(data, **key))
    for name in ("seed", "rank", "step"):
        assert not np.array_equal(first, lm.batches(data, **{**key, name: 9}))


def test_the_installed_text_is_text_and_its_end_is_like_the_rest() -> None:
    train_part, held_out = lm.load_bytes()
    assert len(train_part) > 500_000
    assert lm.digest(train_part, held_out) == lm.digest(*lm.load_bytes())
    shares = [np.bincount(part, minlength=256) / len(part) for part in (train_part, held_out)]
    assert np.abs(shares[0] - shares[1]).sum() < 0.2


def test_the_installed_text_is_kept_and_where_it_cannot_be_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    texts = []
    for folder in ("cache", "cache", "file/cache"):
        monkeypatch.setenv("DENSING_CACHE", str(tmp_path / folder))
        texts.append(lm._python_docs.__wrapped__())
        assert all(file.read_bytes() == texts[0] for file in (tmp_path / "cache").iterdir())
    assert texts[0] == texts[1] == texts[2] and len(list((tmp_path / "cache").iterdir())) == 1


def test_held_out_passages_do_not_overlap() -> None:
    data = np.arange(200, dtype=np.uint8)
    rows = np.concatenate(list(lm.held_out_batches(data, 4, 9)))
    assert rows.shape == (20, 10)
    assert sorted(rows.flatten()) == list(range(200))


def test_a_folder_is_read_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "c.py"):
        (tmp_path / name).write_bytes(name[:1].encode() * 6000)
    data = np.concatenate(lm.load_bytes(str(tmp_path)))
    assert bytes(data) == b"a" * 6000 + b"\n" + b"b" * 6000


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("missing.txt", None, "no such file"),
        ("short.txt", 50, "50 bytes are too few"),
        ("", None, "no such file, or a"),
    ],
)
def test_refused_texts(tmp_path: Path, name: str, size: int | None, says: str) -> None:
    if size is not None:
        (tmp_path / name).write_bytes(b"x" * size)
    with pytest.raises(DensingError, match=says):
        lm.load_bytes(str(tmp_path / name))


def test_sequences_longer_than_the_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DensingError, match="sequence=19999: the text has only 19000 bytes"):
        run(environment(tmp_path, sequence=19_999), lambda clock: Toy())


def test_a_wait_inside_a_wait_counts_once() -> None:
    ticks = iter(range(100))
    clock = Clock(now=lambda: float(next(ticks)))
    clock.start()
    with clock.waiting(), clock.waiting():
        pass
    clock.step()
    assert clock.wait_s == [1.0]
    again = Clock()
    again.load_state_dict(clock.state_dict())
    assert again.step_s == clock.step_s


@pytest.mark.parametrize(
    ("method", "knobs", "says"),
    [
        ("co", {}, "did you mean 'co2'"),
        ("ddp", {"tau": 8}, "unknown knob of ddp: 'tau'"),
        ("co2", {"tau": 0}, "tau = 0 is out of range"),
        ("zero1", {"bucket_mb": float("nan")}, "bucket_mb = nan is out of range"),
    ],
)
def test_refused_methods_and_knobs(tmp_path: Path, method: str, knobs: dict[str, Any], says: str) -> None:
    shape = LmShape(layers=1, hidden=8, heads=1, ffn=8)
    with pytest.raises(DensingError, match=says):
        get_technique(method).run(environment(tmp_path, model=shape), **knobs)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "knobs", "says"),
    [("co2", {"tau": 0}, "tau=0"), ("zero1", {"bucket_mb": float("nan")}, "bucket_mb=nan")],
)
def test_methods_check_their_knobs_themselves(tmp_path: Path, method: str, knobs: dict[str, Any], says: str) -> None:
    shape = LmShape(layers=1, hidden=8, heads=1, ffn=8)
    technique: Any = get_technique(method)
    with pytest.raises(DensingError, match=says):
        train_data_parallel(environment(tmp_path, model=shape), technique.method, **knobs)


def test_groups_must_divide_the_ranks() -> None:
    with pytest.raises(DensingError, match="inner=3: 4 ranks"):
        members(4, 3)
