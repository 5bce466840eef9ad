"""Work in several processes: results in order, reports, failures, and nothing left running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from densing.scores.ladder.workers import WorkerError, each
from tests.support import pool_work
from tests.support.waiting import alive, until


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
    assert until(lambda: all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in "ab"), 60)
    workers = [int((tmp_path / name).read_text()) for name in "ab"]
    parent.kill()
    parent.wait()
    assert until(lambda: not any(alive(worker) for worker in workers), 60)
