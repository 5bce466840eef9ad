"""Stage 1: the tests marked ``gpu``; each runs on a processor and, where there is one, on the device."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree

from benchmarks.gpu.record import ROOT, Session

OWN = "test_gpu.py"
"""Tests of these stages."""


def run(session: Session) -> None:
    """Run pytest, and keep how every test ended."""
    report = session.work / "gpu-tests.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    words = ("-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report.absolute()}")
    # Collecting all tests would want all that develops the project.
    files = [
        str(file) for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if file.name != OWN and "mark.gpu" in file.read_text(encoding="utf-8")
    ]  # fmt: skip
    done = subprocess.run([sys.executable, *words, *files], cwd=ROOT, check=False)
    ends: Counter[str] = Counter()
    # Our own pytest wrote it a moment ago.
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        ends[outcome] += 1
        name = f"{case.get('classname')}.{case.get('name')}"
        session.add("tests", test=name, outcome=outcome, seconds=case.get("time"))
    session.add("outcomes", **ends)
    if done.returncode:
        bad = ends["failure"] + ends["error"]
        raise RuntimeError(f"{bad} of {sum(ends.values())} tests failed; pytest ended with exit code {done.returncode}")
