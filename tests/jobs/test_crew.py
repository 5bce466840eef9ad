"""Work in processes of this machine: one beside what this process does."""

import os
import signal
import time
from pathlib import Path

import pytest

from densing.core import InputError, write_text
from densing.jobs import Tell, beside, crew


def doubled(number: int, tell: Tell) -> dict[str, int]:
    tell({"so far": number})
    return {"twice": 2 * number, "process": os.getpid()}


def refuses(number: int, tell: Tell) -> dict[str, int]:
    raise InputError(f"{number} is no good")


def broken(number: int, tell: Tell) -> dict[str, int]:
    raise ZeroDivisionError("a bug")


def dies(number: int, tell: Tell) -> dict[str, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def chatters(path: Path, tell: Tell) -> dict[str, int]:
    """Tell more than a pipe holds, then leave a file."""
    crew.TELL_SECONDS = 0.0
    for count in range(5000):
        tell({"text": "x" * 1000, "count": count})
    path.touch()
    return {"count": 5000}


def waits(path: Path, tell: Tell) -> dict[str, int]:
    write_text(path, str(os.getpid()))
    time.sleep(600)
    return {}


def appears(path: Path) -> bool:
    """Wait for a file, a minute at most."""
    return any(path.exists() or time.sleep(0.05) for _ in range(1200))


def test_work_beside_ends_in_another_process_and_tells_where_it_is() -> None:
    told = []
    with beside(doubled, 21) as wait:
        done = wait(lambda item, state: told.append((item, state)))
    assert done.row is not None and done.row["twice"] == 42 and done.row["process"] != os.getpid()
    assert told == [(21, {"so far": 21})]


def test_errors_of_ours_are_reasons_and_bugs_are_raised() -> None:
    with beside(refuses, 3) as wait:
        assert wait(print).reason == "3 is no good"
    with beside(broken, 3) as wait, pytest.raises(ZeroDivisionError, match="a bug"):
        wait(print)


def test_a_process_that_is_killed_is_a_reason() -> None:
    with beside(dies, 1) as wait:
        done = wait(print)
    assert done.row is None and "SIGKILL" in done.reason


def test_nobody_listening_does_not_stop_the_work(tmp_path: Path) -> None:
    told: list[int] = []
    with beside(chatters, tmp_path / "done") as wait:
        assert appears(tmp_path / "done")
        assert wait(lambda item, state: told.append(state["count"])).row == {"count": 5000}
    assert told == list(range(len(told))) and 0 < len(told) < 5000


def test_who_leaves_without_waiting_leaves_no_process(tmp_path: Path) -> None:
    with beside(waits, tmp_path / "pid"):
        assert appears(tmp_path / "pid")
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
