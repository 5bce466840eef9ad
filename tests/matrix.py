"""Run the quick tests on every other supported Python, and on the oldest pandas and Numba that are promised.

Not a test module: `make matrix` runs it, on all versions or on those named as arguments. Interpreters that are not
installed are named and left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Newer pyarrow wants NumPy 2 without saying so to pip.
OLDEST = ["pandas==2.2.*", "numpy==1.26.*", "plotly==6.0.*", "pyarrow==15.*", "msgspec==0.19.*"]
TOOLS = ["pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "jsonschema"]
# One file per room, ending in the command line and the main job; the rest runs on one interpreter in `make test`.
FILES = (
    "core/test_tables",
    "scores/catalog/test_tables",
    "scores/laws/test_laws",
    "scores/references/test_references",
    "scores/density/test_inversion",
    "scores/evals/readers/test_files",
    "efficiency/traces/kineto/test_reader",
    "efficiency/timeline/test_intervals",
    "efficiency/timeline/test_overlap",
    "scores/trend/test_tobit",
    "report/test_study",
    "efficiency/profile/test_run",
    "efficiency/simulation/test_engine",
    "efficiency/systems/test_comparison",
    "cli/test_main",
)
CHOSEN = [f"tests/{name}.py" for name in FILES]
# The compiled loops of the simulator on the oldest Numba that is promised, without, and on the newest.
COMBINATIONS = {"3.11": [*OLDEST, "numba==0.61.*"], "3.12": [], "3.13": ["numba"]}


def find(version: str) -> str | None:
    """Return an interpreter of this version that really starts, or None."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv)]
    if sys.version.startswith(f"{version}."):
        candidates.insert(0, sys.executable)
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def passes_on(version: str, pins: list[str], workers: int) -> bool:
    """Install the package for one interpreter and run the quick tests in some processes."""
    interpreter = find(version)
    label = f"Python {version} {' '.join(pins)}".strip()
    if interpreter is None:
        sys.stderr.write(f"{label}: not installed here, left out\n")
        return True
    home = ROOT / ".matrix" / version
    python = str(home / "bin" / "python")
    subprocess.run([interpreter, "-m", "venv", "--clear", str(home)], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", str(ROOT), *TOOLS, *pins], check=True)
    # The installed wheel is tested, its shipped fits and data inside it, so that the tests run where no checkout is.
    folder = home / "tested"
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "cli.py"):
        shutil.copy(ROOT / name, folder)
    command = [
        python,
        "-m",
        "pytest",
        *CHOSEN,
        "-m",
        "not slow",
        "-n",
        str(workers),
        "--dist",
        "loadfile",
        "-p",
        "no:cacheprovider",
    ]
    # What tests load is compiled once, when it is loaded: a part of what is installed.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)
    # In one piece, since several interpreters are at work.
    sys.stderr.write(f"{label}: exit code {done.returncode}\n{done.stdout[-20_000:]}{done.stderr[-2_000:]}\n")
    return done.returncode == 0


if __name__ == "__main__":
    asked = sys.argv[1:] or list(COMBINATIONS)
    if unknown := set(asked) - set(COMBINATIONS):
        sys.exit(f"no such version: {', '.join(sorted(unknown))}; known: {', '.join(COMBINATIONS)}")
    if missing := [path for path in CHOSEN if not (ROOT / path).is_file()]:
        sys.exit(f"no such test file: {', '.join(missing)}")
    # At once, because installing keeps one processor busy at most.
    share = max(1, (os.cpu_count() or 1) // len(asked))
    with ThreadPoolExecutor(len(asked)) as pool:
        outcomes = list(pool.map(lambda version: passes_on(version, COMBINATIONS[version], share), asked))
    sys.exit(0 if all(outcomes) else 1)
