"""What a recording finds out when it begins, and what it can only find out later."""

from __future__ import annotations

import gc
import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.efficiency.traces.recording import Recorder, record
from densing.efficiency.traces.run import read_timeline

torch = pytest.importorskip("torch", reason="recording needs PyTorch")
import torch.distributed as dist  # noqa: E402


@pytest.fixture(autouse=True)
def _no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


def test_a_folder_that_cannot_be_made_is_refused_before_the_training(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for out in (file, file / "traces"):
        with pytest.raises(InputError, match=r"notes\.txt.*cannot write traces there .*choose another folder"):
            record(out).start()
    assert file.read_text() == "mine"


@pytest.mark.parametrize("rank", ["1", 1.0, True])
def test_a_rank_is_a_whole_number(tmp_path: Path, rank: Any) -> None:
    with pytest.raises(InputError, match=r"record\(rank=.*whole number"):
        record(tmp_path, rank=rank).start()


def test_a_second_recording_of_one_process_is_refused(tmp_path: Path) -> None:
    first = record(tmp_path / "a")
    with first as step:
        with pytest.raises(InputError, match=r"b'\): this process is already recorded into '.*a'; end that first"):
            record(tmp_path / "b").start()
        for _ in range(5):
            step()
        # The first has written its trace: a second may begin although the block goes on.
        with record(tmp_path / "b") as other:
            for _ in range(5):
                other()
    assert len(first.files) == len(other.files) == 1


def test_a_recording_that_nobody_holds_any_more_stands_in_no_way(tmp_path: Path) -> None:
    def forgotten() -> None:
        recorder = record(tmp_path / "a").start()
        recorder._profiler.stop()

    forgotten()
    gc.collect()
    with warnings.catch_warnings(), record(tmp_path / "b"):
        warnings.simplefilter("ignore")
        assert Recorder._running is not None
        Recorder._running().stop()


def late(out: Path, backend: str, **options: Any) -> Recorder:
    """Record a loop that initialises ``torch.distributed`` once the recording has begun."""
    with record(out, wait=2) as step:
        dist.init_process_group(backend, **options)
        try:
            for _ in range(6):
                dist.all_reduce(torch.ones(8))
                step()
        finally:
            dist.destroy_process_group()
    return step


def test_a_rank_told_late_counts(tmp_path: Path) -> None:
    pytest.importorskip("torch.testing._internal.distributed.fake_pg", reason="a group of several ranks in one process")
    step = late(tmp_path / "t", "fake", store=dist.HashStore(), rank=2, world_size=4)
    [rank] = read_timeline([tmp_path / "t"]).ranks
    assert (rank.rank, rank.origin.world_size) == (2, 4)
    assert [file.name for file in step.files] == ["rank00002.pt.trace.json.gz"]


def test_a_group_made_late_is_recorded_with_its_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    step = late(tmp_path / "t", "gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    [rank] = read_timeline([tmp_path / "t"]).ranks
    assert (rank.origin.backend, rank.origin.groups) == ("gloo", {"0": (0,)})
    events = json.loads(gzip.decompress(step.files[0].read_bytes()))["traceEvents"]
    assert sum(event["name"] == "densing::wait" for event in events) == 3
