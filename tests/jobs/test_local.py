"""Jobs on this machine: queue, memory, devices, restarts and clean endings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.jobs import NO_RETRY, Job, JobEvent, get_executor, local
from densing.jobs.local import LocalExecutor
from tests.support.waiting import alive, until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX")


def python(code: str, name: str = "job", **options: Any) -> Job:
    """A job that runs a line of Python."""
    return Job((sys.executable, "-c", code), name, **options)


def test_results_in_the_order_given_with_last_lines(tmp_path: Path) -> None:
    jobs = [
        python("import time; time.sleep(.3); print('slow')", "slow", workdir=tmp_path),
        python("import os; print(os.getcwd()); print(os.environ['X'])", "fast", workdir=tmp_path, env={"X": "7"}),
        python("import sys; print('on stderr', file=sys.stderr); print('no newline', end='')", "err"),
    ]
    results = LocalExecutor(workers=3).run(jobs)
    assert [result.job for result in results] == jobs
    assert all(result.ok and result.attempts == 1 and not result.reason for result in results)
    assert [result.lines for result in results] == [("slow",), (str(tmp_path), "7"), ("on stderr", "no newline")]


def test_no_jobs() -> None:
    assert LocalExecutor().run([]) == []


def test_workers_run_side_by_side_and_no_more(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; p = Path(sys.argv[1]); (p / str(os.getpid())).touch();"
        "time.sleep(.4); print(len(list(p.iterdir()))); (p / str(os.getpid())).unlink()"
    )
    jobs = [Job((sys.executable, "-c", code, str(tmp_path)), str(number)) for number in range(4)]
    seen = [int(result.lines[0]) for result in LocalExecutor(workers=2).run(jobs)]
    assert max(seen) == 2


def test_crashed_job_is_restarted_and_says_so(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal; from pathlib import Path; p = Path(sys.argv[1]); n = len(list(p.iterdir()));"
        "(p / str(n)).touch(); print('attempt', n, flush=True); n >= 2 or os.kill(os.getpid(), signal.SIGKILL)"
    )
    events: list[JobEvent] = []
    [result] = LocalExecutor(retries=2).run(
        [Job((sys.executable, "-c", code, str(tmp_path)), "flaky")], on_event=events.append
    )
    assert result.ok and result.attempts == 3 and result.lines == ("attempt 2",)
    assert result.reason.startswith("attempt 1: killed by SIGKILL") and "attempt 2: killed by SIGKILL" in result.reason
    kinds = [event.kind for event in events if event.kind != "output"]
    assert kinds == ["queued", "started", "restarted", "restarted", "finished"]
    assert [event.message for event in events if event.kind == "output"] == ["attempt 0", "attempt 1", "attempt 2"]


def test_job_that_keeps_crashing_fails_with_its_last_words() -> None:
    [result] = LocalExecutor(retries=1).run([python("raise SystemExit('cannot go on')")])
    assert (result.returncode, result.attempts, result.lines) == (1, 2, ("cannot go on",))
    assert result.reason == "attempt 1: exit code 1; attempt 2: exit code 1"


def test_job_that_says_so_is_not_restarted() -> None:
    [result] = LocalExecutor(retries=5).run([python(f"raise SystemExit({NO_RETRY})")])
    assert (result.returncode, result.attempts) == (NO_RETRY, 1)


def test_command_that_does_not_exist() -> None:
    [result] = LocalExecutor(retries=0).run([Job(("/no/such/program",), "nothing")])
    assert result.returncode == 127 and "cannot run" in result.lines[0]


def test_long_output_does_not_block_and_only_the_end_is_kept() -> None:
    [result] = LocalExecutor().run([python("for n in range(30_000): print('line', n)")])
    assert result.ok and len(result.lines) == 20 and result.lines[-1] == "line 29999"


def test_job_that_closes_its_output_still_ends() -> None:
    began, computed = time.monotonic(), time.process_time()
    [result] = LocalExecutor().run([python("import os, time; os.close(1); os.close(2); time.sleep(1)")])
    assert result.ok
    # Waiting is no computing: a loop that asks again and again would compute all the while.
    assert time.process_time() - computed < 0.5 * (time.monotonic() - began)


def test_secrets_do_not_come_back() -> None:
    job = python(
        "import os, json; print('key is', os.environ['API_KEY']); print(json.loads(os.environ['MORE'])['token'])",
        env={"API_KEY": "q8w7e6r5", "MORE": '{"token": "zxcvbnm1"}'},
    )
    events: list[JobEvent] = []
    [result] = LocalExecutor().run([job], on_event=events.append)
    assert result.lines == ("key is ***", "***")
    assert "q8w7e6r5" not in repr((events, result)) and "zxcvbnm1" not in repr((events, result))


def test_modules_are_not_taken_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')")
    [result] = LocalExecutor(retries=0).run([Job((sys.executable, "-m", "json.tool", "--help"), "j", workdir=tmp_path)])
    assert result.ok


# -- memory and devices ------------------------------------------------------------------------------------------------


def test_job_larger_than_the_machine_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"job big needs 50 GB of memory, this machine has 10 GB"):
        LocalExecutor(memory_gb=10).run([python("", "small"), python("", "big", memory_gb=50)])
    assert local.total_memory_gb() < 1e6


def test_jobs_wait_for_memory(tmp_path: Path) -> None:
    events: list[tuple[str, str]] = []
    jobs = [
        python("import time; time.sleep(.3)", name, memory_gb=size) for name, size in [("a", 6), ("b", 6), ("c", 3)]
    ]
    results = LocalExecutor(workers=3, memory_gb=10).run(jobs, on_event=lambda e: events.append((e.kind, e.job.name)))
    assert all(result.ok for result in results)
    # c fits beside a and passes b, which waits for a.
    assert events.index(("started", "c")) < events.index(("finished", "a")) < events.index(("started", "b"))


def test_low_free_memory_makes_jobs_wait_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "available_memory_gb", lambda: 0.5)
    events: list[str] = []
    jobs = [python("import time; time.sleep(.1)", name, memory_gb=2) for name in "ab"]
    results = LocalExecutor(workers=2, memory_gb=10).run(jobs, on_event=lambda e: events.append(e.kind + e.job.name))
    assert all(result.ok for result in results)
    assert events.index("finisheda") < events.index("startedb")


def test_memory_of_machine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       2000000 kB\nMemAvailable:   1000000 kB\n")
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("500000000\n")
    monkeypatch.setattr(local, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 16_000_000, "SC_PAGE_SIZE": 4000}.get)
    monkeypatch.setattr(local, "CGROUP_LIMITS", (tmp_path / "max", tmp_path / "none"))
    assert local.total_memory_gb() == pytest.approx(2.048)
    assert local.available_memory_gb() == pytest.approx(1.024)
    monkeypatch.setattr(local, "CGROUP_LIMITS", (tmp_path / "limit",))
    assert local.total_memory_gb() == pytest.approx(0.5)


def test_one_job_per_device(tmp_path: Path) -> None:
    code = "import os, time; time.sleep(.3); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    jobs = [python(code, str(n), devices=1) for n in range(4)] + [python(code, "pair", devices=2), python(code, "cpu")]
    seen = [result.lines for result in LocalExecutor(devices="3,5").run(jobs)]
    assert sorted(seen[:4]) == [("3",), ("3",), ("5",), ("5",)]
    assert seen[4] == ("3,5",) and seen[5] == ()
    with pytest.raises(InputError, match=r"needs 3 device\(s\), this machine has 2"):
        LocalExecutor(devices="3,5").run([python(code, devices=3)])


def test_accelerators_come_from_the_variable_or_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-ab")
    assert local.accelerators() == ["2", "GPU-ab"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local.accelerators() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: X'\necho '  MIG 1'\necho 'GPU 1: X'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert local.accelerators() == ["0", "1"]
    program.write_text("#!/bin/sh\necho no driver; exit 9\n")
    assert local.accelerators() == []


@pytest.mark.parametrize(
    "options",
    [
        {"workers": "0"},
        {"workers": "two"},
        {"retries": -1},
        {"memory_gb": "much"},
        {"memory_gb": 0},
        {"devices": "1,1"},
    ],
)
def test_senseless_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"--executor-arg \w+="):
        get_executor("local", **options)


# -- endings -----------------------------------------------------------------------------------------------------------

PARENT = """
import sys
from pathlib import Path
from densing.jobs import Job, get_executor
code = "import os, subprocess, sys, time; from pathlib import Path; "
code += "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
code += "Path(sys.argv[1]).write_text(f'{os.getpid()} {c.pid}'); time.sleep(60)"
jobs = [Job((sys.executable, "-c", code, f"{sys.argv[1]}/{n}"), str(n)) for n in range(2)]
get_executor("local", workers=2).run(jobs)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Any:
    """A process that runs two jobs with a child each; their process ids."""
    process = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stderr=subprocess.DEVNULL)
    files = [tmp_path / "0", tmp_path / "1"]
    assert until(lambda: all(file.exists() and len(file.read_text().split()) == 2 for file in files), 60)
    yield process, [int(pid) for file in files for pid in file.read_text().split()]
    process.kill()
    process.wait()
    for file in files:
        for pid in map(int, file.read_text().split()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's death is signalled on Linux only")
def test_jobs_die_with_a_killed_parent(parent: Any) -> None:
    process, pids = parent
    process.kill()
    assert until(lambda: not any(alive(pid) for pid in pids[::2]))


def test_ctrl_c_ends_jobs_and_their_children(parent: Any) -> None:
    process, pids = parent
    process.send_signal(signal.SIGINT)
    assert process.wait(30) != 0
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_listener_that_fails_leaves_no_process() -> None:
    pids: list[int] = []

    def listen(event: JobEvent) -> None:
        if event.kind == "output":
            pids.append(int(event.message))
            raise RuntimeError("listener broke")

    job = python("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with pytest.raises(RuntimeError, match="listener broke"):
        LocalExecutor().run([job], on_event=listen)
    assert pids and not alive(pids[0])


def test_job_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("densing.jobs.attempt.GRACE_SECONDS", 0.3)
    pids: list[int] = []

    def listen(event: JobEvent) -> None:
        if event.kind == "output":
            pids.append(int(event.message))
            raise KeyboardInterrupt

    code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); "
    with pytest.raises(KeyboardInterrupt):
        LocalExecutor().run([python(code + "time.sleep(60)")], on_event=listen)
    assert pids and not alive(pids[0])


def test_children_left_behind_are_ended() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    [result] = LocalExecutor().run([python(code)])
    assert result.ok and until(lambda: not alive(int(result.lines[0])))
