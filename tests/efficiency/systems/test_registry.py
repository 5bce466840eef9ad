"""Techniques by name: the built-in ones, those of other packages, and what is said of broken ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import UnavailableError, UnknownNameError
from densing.efficiency.parallel import LmShape, RunEnv, RunSpec
from densing.efficiency.simulation import load_cluster, load_workload
from densing.efficiency.systems.comparison import compare
from densing.efficiency.systems.registry import BUILT_IN, get_technique, technique_names, techniques
from densing.efficiency.systems.worker import find
from tests.support.command import printed

MODULE = """
from densing.efficiency.systems import Answer, Claim, Knob, Plan
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.timeline.timeline import Kind


class Nap:
    name, role, paper, summary = "nap", "i", "none", "waits \\x1b[31m<b>a second</b>"
    knobs = (Knob("seconds", 1.0, "how long"),)

    @property
    def claims(self):
        return (Claim("NAP-1", "sleep", "bed", 1.0, "s", "measured", "my watch", lambda physics: Answer(1.0), 0.1),)

    def plan(self, workload, cluster, seconds=1.0):
        graph = Graph()
        for step in range(3):
            graph.step = step
            graph.add("nap", Kind.COMPUTE, (0,), "compute", seconds)
        return Plan(graph, 1, 1, 2, {"technique": 8.0})


class Hurt(Nap):
    name = "hurt"

    @property
    def claims(self):
        raise RuntimeError("no claims today")


class Wrong:
    name = "wrong"


class Other(Nap):
    name = "something-else"


def leave():
    raise SystemExit(9)
"""
RUNS = """
from densing.efficiency.systems import Knob, above_zero
from densing.efficiency.systems.planner import Buckets, DataParallelRun, Replicated


class TenTimesFewer(Buckets):
    def send(self, count, done):
        return super().send(count / 10, done)


class SignMethod:
    def __init__(self, model, optimizer, *, waiting, scale):
        self.model, self.optimizer, self.scale, self.steps = model, optimizer, scale, 0

    def backward(self, loss):
        loss.backward()
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad.sign() * self.scale

    def step(self):
        self.optimizer.step()
        self.steps += 1

    def finish(self):
        pass

    def figures(self):
        return {"steps": float(self.steps), "scale": self.scale}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Sign(DataParallelRun, Replicated):
    name, paper, summary = "sign", "none", "sends the signs of gradients"
    knobs = (Knob("scale", 0.5, "of a sign", above_zero),)
    changes_loss = "signs in place of gradients"

    def exchange(self, knobs):
        return TenTimesFewer

    def method(self, replica, **knobs):
        return replica.wrap(SignMethod, **knobs)
"""
POINTS = """[densing.techniques]
nap = densing_naps:Nap
hurt = densing_naps:Hurt
ddp = densing_naps:Nap
wrong = densing_naps:Wrong
sign = densing_signs:Sign
renamed = densing_naps:Other
gone = densing_naps_missing:Nap
Bad Name = densing_naps:Nap
"""


@pytest.fixture
def naps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that registers techniques, as an installer would leave it."""
    info = tmp_path / "densing_naps-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: densing-naps\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "densing_naps.py").write_text(MODULE)
    (tmp_path / "densing_signs.py").write_text(RUNS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "densing_naps", raising=False)
    monkeypatch.delitem(sys.modules, "densing_signs", raising=False)
    return tmp_path


def cli(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "densing", "techniques", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_built_in_techniques_answer_to_their_names() -> None:
    names = technique_names()
    assert len(set(names)) == len(names)
    assert names[: len(BUILT_IN)] == tuple(BUILT_IN)
    for name in BUILT_IN:
        found = get_technique(name)
        assert found.name == name
        assert found.summary
        assert found.role


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ladder'"):
        get_technique("laddr")


def test_names_import_nothing_of_the_techniques() -> None:
    code = (
        "import json, sys; from densing.efficiency.systems.registry import technique_names; technique_names(); "
        "print(json.dumps([m for m in sys.modules if m.startswith('densing.efficiency.systems.')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) <= {
        "densing.efficiency.systems.registry",
    }


def test_a_technique_of_another_package(naps: Path) -> None:
    assert "nap" in technique_names()
    assert get_technique("nap").summary.startswith("waits")
    assert get_technique("ddp").__class__.__module__.startswith("densing.efficiency.systems")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gone", "densing_naps_missing"),
        ("wrong", "has no role, so it is not a technique"),
        ("renamed", "has the name 'something-else'"),
    ],
)
def test_a_broken_one_says_what_is_wrong(naps: Path, name: str, told: str) -> None:
    with pytest.raises(UnavailableError, match=told):
        get_technique(name)


def test_broken_ones_are_notes_beside_the_others(naps: Path) -> None:
    found, notes = techniques()
    assert {"nap", "hurt", "ddp", "co2"} <= {technique.name for technique in found}
    codes = sorted((note.code, note.details["technique"]) for note in notes)
    assert codes == [
        ("broken-technique", "gone"),
        ("broken-technique", "renamed"),
        ("broken-technique", "wrong"),
        ("technique-name", "Bad Name"),
        ("technique-name-taken", "ddp"),
    ]


def test_one_that_leaves_python_is_broken_too(tmp_path: Path, naps: Path) -> None:
    (naps / "densing_naps.py").write_text("raise SystemExit(9)")
    with pytest.raises(UnavailableError, match="SystemExit: 9"):
        get_technique("nap")


def test_one_that_would_run_but_has_no_method_is_refused_before_any_rank_starts(naps: Path) -> None:
    (naps / "densing_naps.py").write_text(
        "from densing.efficiency.systems.planner import DataParallelRun, Replicated\n"
        "class Nap(DataParallelRun, Replicated): name, summary = 'nap', 'waits'\n"
    )
    with pytest.raises(UnavailableError, match="abstract class Nap with abstract method method"):
        get_technique("nap")


def test_the_command_line_takes_them(naps: Path) -> None:
    listed: list[dict[str, Any]] = printed(cli(naps, "list", "--json").stdout)
    assert {"nap", "ddp"} <= {row["name"] for row in listed}
    text = cli(naps, "list")
    assert "\x1b" not in text.stdout
    assert "densing_naps_missing" in text.stderr
    shown = printed(cli(naps, "show", "nap", "--json").stdout)
    assert (shown["runs"], shown["claims"][0]["id"], shown["knobs"][0]["default"]) == (False, "NAP-1", 1.0)
    [row] = printed(cli(naps, "validate", "--technique", "nap", "--json").stdout)
    # Its check takes no notice of the laws it is handed, so it predicts nothing.
    assert (row["ours"], row["error"], row["grade"], row["verdict"]) == (1.0, 0.0, "algebraic", "agrees")


def test_broken_claims_are_an_error_of_exit_code_3(naps: Path) -> None:
    done = cli(naps, "validate", "--technique", "hurt", "--json", code=3)
    assert printed(done.stdout) == []
    assert "no claims today" in done.stderr
    shown = cli(naps, "show", "hurt", "--json")
    assert printed(shown.stdout)["claims"] == []
    assert "no claims today" in shown.stderr


def test_a_technique_of_another_package_plans_what_its_buckets_send(naps: Path) -> None:
    workload, cluster = load_workload("llama-8b", dp=16, tp=1), load_cluster("a100x8-tcp", n=16)
    plain, fewer = (compare(workload, cluster, [name]).rows[0] for name in ("ddp", "sign"))
    assert fewer.bytes == pytest.approx(plain.bytes / 10, rel=1e-6)
    assert fewer.changes_loss == "signs in place of gradients"


def test_a_technique_of_another_package_runs_by_its_own_method(naps: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = tmp_path / "text.txt"
    text.write_text("all work and no play makes a dull model. " * 500)
    shape = LmShape(layers=1, hidden=16, heads=2, ffn=16)
    spec = RunSpec("sign", {"scale": 2.0}, nproc=1, steps=6, model=shape, batch=2, sequence=16, lr=1e-2,
                   corpus=str(text), out=str(tmp_path / "run"), trace_steps=0)  # fmt: skip
    record = find(spec)(RunEnv(spec, 0, 1))
    assert (record.technique, record.extra["steps"], record.extra["scale"]) == ("sign", 6.0, 2.0)
    assert record.losses[-1] < record.losses[0]


@pytest.mark.slow
def test_the_command_line_trains_it(naps: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(naps), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "densing", "train", "--technique", "sign", "--set", "scale=2", "--nproc", "2",
               "--steps", "3", "--model", "tiny", "--trace-steps", "0", "--json",
               "--out", str(tmp_path / "run")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["knobs"] == {"scale": 2.0}
