"""Do the tests of a room notice a changed line? ``make mutants`` changes one line at a time and runs them.

Changes are cosmic-ray's (operators, numbers, comparisons, conditions, loops), drawn by a seed from all that a room's
files allow; annotations are left alone. A mutant is killed when a quick test of the mirrored folder fails, the test
file of the changed module first. ``tests/equal_mutants.txt`` lists changes that make an equal program, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from tests.support.folders import ROOT

ROOMS = (
    "scores/fit",
    "scores/joint",
    "scores/references",
    "scores/density",
    "scores/trend",
    "efficiency/profile",
    "efficiency/simulation",
    "efficiency/throughput",
)
EQUAL = ROOT / "tests" / "equal_mutants.txt"
SENSELESS = re.compile("Decorator|Bit|Shift|Is|Invert|NoOp")
"""Of cosmic-ray's operators: those that only make type errors of numerical code, and identity for equality."""
SECONDS = 600
"""Of a processor: a mutant whose tests take longer counts as killed, it runs in circles. On the clock they may take ten
times as long, so that a busy machine kills none."""


class Mutant(NamedTuple):
    """One changed line."""

    path: str
    line: int
    old: str
    new: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n    - {self.old}\n    + {self.new}"


def _bare(text: str) -> str:
    """Return a module's program without annotations, docstrings and the condition of imports for types."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = None if isinstance(node, ast.arg) else ast.Constant(0)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.test = ast.Constant(0)
    return ast.dump(tree)


def draw(room: str, count: int, seed: int) -> tuple[list[Mutant], int]:
    """Return mutants of a room's files drawn at random, and how many changes there are to draw from."""
    import parso  # noqa: F401 (cosmic-ray's operators import it in a circle otherwise)
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    kinds = [kind for kind in map(get_operator, operator_names()) if not kind.arguments()]
    operators = [kind() for kind in kinds if not SENSELESS.search(kind.__name__)]
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "densing" / room).glob("*.py"))}
    places = []
    for path, source in sources.items():
        nodes = list(ast_nodes(get_ast(source)))
        for operator in operators:
            positions = sum(len(list(operator.mutation_positions(node))) for node in nodes)
            places += [(path, operator, occurrence) for occurrence in range(positions)]
    random.Random(f"{seed} {room}").shuffle(places)
    equal, drawn = known_equal(), {}
    for path, operator, occurrence in places:
        if len(drawn) == count:
            break
        source, text = sources[path], mutate_code(sources[path], operator, occurrence)
        if text is None or not _differs(source, text):
            continue
        rows = list(difflib.unified_diff(source.splitlines(), text.splitlines(), lineterm="", n=0))[2:]
        old, new = (" ".join(row[1:].strip() for row in rows if row[0] == sign) for sign in "-+")
        mutant = Mutant(str(path.relative_to(ROOT)), int(re.findall(r"\d+", rows[0])[0]), old, new, text)
        # Eleven other signs for a plus are one place: a line is changed once.
        if (mutant.path, new) not in equal:
            drawn.setdefault((path, mutant.line), mutant)
    return list(drawn.values()), len(places)


def _differs(source: str, text: str) -> bool:
    try:
        return _bare(source) != _bare(text)
    except SyntaxError:
        return False


def known_equal() -> set[tuple[str, str]]:
    """Return path and new line of the changes that make an equal program."""
    rows = EQUAL.read_text(encoding="utf-8").splitlines() if EQUAL.exists() else []
    parts = [row.split(" | ") for row in rows if row and not row.startswith("#")]
    return {(path, new) for path, new, _ in parts}


def survives(copies: Queue[Path], mutant: Mutant) -> bool:
    """Return whether the room's tests pass with the change."""
    copy = copies.get()
    room = Path(mutant.path).parent.relative_to("densing")
    own = sorted((copy / "tests" / room).glob(f"**/test_{Path(mutant.path).stem}*.py"))
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
    changed = copy / mutant.path
    before = changed.read_text(encoding="utf-8")
    changed.write_text(mutant.text, encoding="utf-8")
    for cached in (changed.parent / "__pycache__").glob(f"{changed.stem}.*.pyc"):
        cached.unlink()
    try:
        for targets in ([*map(str, own), mutant.path], [f"tests/{room}"]):
            done = subprocess.run(
                [*command, *targets], cwd=copy, env=environment, capture_output=True, timeout=10 * SECONDS, check=False
            )
            if done.returncode not in (0, 5):
                return False
    except subprocess.TimeoutExpired:
        return False
    finally:
        changed.write_text(before, encoding="utf-8")
        copies.put(copy)
    return True


def main() -> int:
    """Draw, run, print a table and the survivors; 1 when fewer than the stated share were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--sample", type=int, default=20, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--least", type=float, default=0.9, help="share that has to be killed")
    arguments = parser.parse_args()
    # Every process of the tests inherits the limit and counts for itself.
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, resource.RLIM_INFINITY))
    killed = drawn = 0
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        copies: Queue[Path] = Queue()
        for number in range(arguments.jobs):
            copy = Path(folder) / str(number)
            skip = shutil.ignore_patterns(".*", "docs", "results", "build")
            shutil.copytree(ROOT, copy, ignore=skip)
            copies.put(copy)
        print("| room | possible | drawn | killed |\n|---|---|---|---|")  # noqa: T201
        for room in arguments.rooms.split(","):
            chosen, possible = draw(room, arguments.sample, arguments.seed)
            alive = list(pool.map(partial(survives, copies), chosen))
            survivors += [mutant for mutant, lives in zip(chosen, alive, strict=True) if lives]
            drawn, killed = drawn + len(chosen), killed + alive.count(False)
            print(f"| {room} | {possible} | {len(chosen)} | {alive.count(False)} |", flush=True)  # noqa: T201
    print(f"| all | | {drawn} | {killed} |", *survivors, sep="\n")  # noqa: T201
    return int(killed < arguments.least * drawn)


if __name__ == "__main__":
    sys.exit(main())
