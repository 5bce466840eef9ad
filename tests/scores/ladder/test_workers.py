"""Work in several processes: results in order, reports, failures, and nothing left running."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from densing.scores.ladder.workers import WorkerError, each
from tests.support import pool_work


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_reports_come_all(workers: int) -> None:
    told: list[tuple[str, int]] = []
    assert each(pool_work.square, [3, 1, 2], workers, lambda *message: told.append(message)) == [9, 1, 4]
    assert sorted(told) == [("at", 1), ("at", 2), ("at", 3)]
    assert each(pool_work.square, [], workers) == []


def test_an_error_is_the_works_own() -> None:
    with pytest.raises(ValueError, match="one is not wanted"):
        each(pool_work.fail, [0, 1, 2], 2)


def test_a_killed_process_is_said() -> None:
    with pytest.raises(WorkerError, match="killed"):
        each(pool_work.die, [0, 1, 2], 2)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks /proc whether processes are gone")
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, pool_work.__file__, str(tmp_path)])
    wait_for(lambda: all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in "ab"))
    workers = [int((tmp_path / name).read_text()) for name in "ab"]
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(running(worker) for worker in workers))


def wait_for(condition: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def running(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return Path(f"/proc/{process}").exists()
