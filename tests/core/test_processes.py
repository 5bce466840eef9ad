"""Processes that end with the one that started them: commands, Python processes of pools, and whole sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from densing.core import parent_death, processes
from tests.support.waiting import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
COMMAND = "import sys; from densing.core import processes; processes.start(sys.argv[1:], stdout=1).wait()"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


POOL = """
import os, subprocess, sys, time
code = ("import os, sys, time; from densing.core import processes; processes.die_with_parent(int(sys.argv[1])); "
        "print(os.getpid(), flush=True); time.sleep(100)")
subprocess.Popen([sys.executable, "-c", code, str(os.getpid())]).wait()
"""


@linux
@pytest.mark.parametrize(
    ("code", "command"),
    [(COMMAND, [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(100)"]), (POOL, [])],
)
def test_a_process_dies_with_a_parent_that_is_killed(code: str, command: list[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    assert until(lambda: not alive(child))


@linux
def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "from densing.core import processes; processes.die_with_parent(1 << 30); print('lives')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    # The same of the script that becomes a command.
    assert parent_death.main([str(1 << 30), "echo"]) == -signal.SIGKILL


def test_a_command_that_cannot_be_run_says_so() -> None:
    done = processes.start(["/no/such/program"], stdout=subprocess.PIPE)
    assert done.communicate()[0] == b"/no/such/program: cannot run (No such file or directory)\n"
    assert done.returncode == 127


def test_a_command_has_the_environment_and_folder_it_is_given(tmp_path: Path) -> None:
    code = "import os; print(os.environ['WORD'], os.getcwd(), os.getsid(0) == os.getpid())"
    environment = {**os.environ, "WORD": "here"}
    process = processes.start([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, cwd=tmp_path)
    assert process.communicate()[0].decode().split() == ["here", str(tmp_path.resolve()), "True"]


def test_stopping_ends_the_whole_session_and_kills_what_does_not_listen() -> None:
    deaf = "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += "child = subprocess.Popen(['sleep', '100']); print(child.pid, flush=True); child.wait()"
    process = processes.start([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    processes.stop([process], grace_s=0.2)
    assert process.returncode in (-signal.SIGKILL, 0)
    if sys.platform == "linux":
        assert until(lambda: not alive(child))
    process.stdout.close()
    # Nothing is left to stop: that is no error.
    processes.stop([process])
    processes.signal_group(process, signal.SIGTERM)
