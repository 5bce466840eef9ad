"""How the house stands: figures of its structure, counted from the source; ``make house`` prints them.

``python -m tests.support.house [FOLDER]`` counts one folder of the package (``scores/trend``) or all of it;
``--list circles|bypasses|single|importers|homely`` says which, ``--walks`` follows a score, a trace event and a flag.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import re
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType

from tests.support.folders import ROOT

PACKAGE = "densing"
# Folders that hold rooms and are none themselves: what is in them is reached through the rooms' faces.
WINGS = frozenset({PACKAGE, f"{PACKAGE}.scores", f"{PACKAGE}.efficiency"})
# Words of speech where the field has a noun (options, result, request, rows, mask).
HOMELY = frozenset(
    """
    asked told found wanted given said says tells kept left taken made shown seen held meant sent named whole
    ours theirs what which where here there others whose place places trouble troubles anything something
    nothing together needs gone lost why how news word words way ways rest far much many most least enough
    alike alone apart beside heard felt drawn laid stood lies stands goes comes went came became turned
    spoken written read_off hers his
    """.split()  # noqa: SIM905 (a list of one word a line would hide the code)
)


def code_lines(text: str) -> int:
    """Return the lines of a module that hold code: no docstrings, no comments, no blank lines."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        for line in range(token.start[0], token.end[0] + 1)
        if token.string
    }
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    return len(lines - strings)


class House:
    """The package's modules, what they import and what they define."""

    def __init__(self, root: Path = ROOT, under: str = "") -> None:
        self.root, self.under = root, under.strip("/")
        self.paths: dict[str, Path] = {}
        self.packages: set[str] = set()
        for path in sorted((root / PACKAGE).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            if name.endswith(".__init__"):
                name = name.removesuffix(".__init__")
                self.packages.add(name)
            self.paths[name] = path
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()}

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Those of the folder that is counted."""
        folder = self.root / PACKAGE / self.under
        return {
            name: path
            for name, path in self.paths.items()
            if folder in path.parents or path == folder.with_suffix(".py")
        }

    @cached_property
    def faces(self) -> dict[str, dict[str, str]]:
        """Of each package, the module behind each name that its stub exports."""
        faces: dict[str, dict[str, str]] = defaultdict(dict)
        for package in self.packages:
            stub = self.paths[package].with_suffix(".pyi")
            if not stub.is_file():
                continue
            for node in ast.parse(stub.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        module = ".".join(filter(None, [package, node.module]))
                        full = f"{module}.{alias.name}"
                        faces[package][alias.name] = full if full in self.paths else module
        return faces

    def home(self, module: str, name: str) -> str:
        """Return the module in which a name imported from a module is defined, faces seen through."""
        if f"{module}.{name}" in self.paths:
            return f"{module}.{name}"
        behind = self.faces.get(module, {}).get(name)
        if behind is None or behind == module:
            return module
        return behind if behind.endswith(f".{name}") and behind in self.paths else self.home(behind, name)

    @cached_property
    def imports(self) -> dict[str, list[tuple[str, str, bool]]]:
        """Per module ``(as written, home, only for types)`` of each name imported from the package."""
        imports: dict[str, list[tuple[str, str, bool]]] = {}
        for module, tree in self.trees.items():
            typing = {
                id(inner)
                for node in ast.walk(tree)
                if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
                for inner in ast.walk(node)
            }
            imports[module] = [
                (self._written(node.module, alias.name), self.home(node.module, alias.name), id(node) in typing)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE and node.module
                for alias in node.names
            ]  # fmt: skip
        return imports

    def _written(self, module: str, name: str) -> str:
        """Return what an import reaches for: a module that a face exports belongs to the face."""
        full = f"{module}.{name}"
        return full if full in self.paths and name not in self.faces.get(module, {}) else module

    def circles(self) -> list[list[str]]:
        """Return the groups of files that import each other, in whatever way, types included."""
        graph = {
            m: {home for _, home, _ in found if home != m and home in self.paths} for m, found in self.imports.items()
        }
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        groups: list[list[str]] = []

        def visit(node: str) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            for target in graph[node]:
                if target not in index:
                    visit(target)
                    low[node] = min(low[node], low[target])
                elif target in stack:
                    low[node] = min(low[node], index[target])
            if low[node] == index[node]:
                group = []
                while not group or group[-1] != node:
                    group.append(stack.pop())
                if len(group) > 1:
                    groups.append(sorted(group))

        for node in graph:
            if node not in index:
                visit(node)
        return [group for group in sorted(groups) if any(name in self.modules for name in group)]

    def bypasses(self) -> list[str]:
        """Return imports that reach into a folder past its face, from outside of it."""
        bypasses = []
        for module, found in self.imports.items():
            if module not in self.modules:
                continue
            inside = f"{module}.__init__" if module in self.packages else module
            for written, _, _ in found:
                parts = written.split(".")
                for count in range(1, len(parts)):
                    folder = ".".join(parts[:count])
                    if folder in self.packages and folder not in WINGS and not inside.startswith(f"{folder}."):
                        bypasses.append(f"{module} -> {written}")
                        break
        return sorted(set(bypasses))

    def importers(self) -> list[tuple[str, str]]:
        """Return the modules with a single importer, which is in their own folder."""
        users: dict[str, set[str]] = defaultdict(set)
        for module, found in self.imports.items():
            for _, home, _ in found:
                users[home].add(module)
        return [
            (module, user)
            for module in sorted(self.modules)
            if module not in self.packages and len(users[module]) == 1
            for user in users[module]
            if user.rpartition(".")[0] == module.rpartition(".")[0] and not self._exported(module)
        ]

    def _exported(self, module: str) -> bool:
        return any(module in names.values() for names in self.faces.values())

    def private_functions(self) -> tuple[list[str], int]:
        """Return the private functions and methods used once in their file, and how many private ones there are."""
        single, count = [], 0
        for module in self.modules:
            tree = self.trees[module]
            names = Counter(
                node.id if isinstance(node, ast.Name) else node.attr
                for node in ast.walk(tree)
                if isinstance(node, (ast.Name, ast.Attribute))
            )
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and re.match(r"_[^_]", node.name):
                    count += 1
                    if names[node.name] == 1:
                        single.append(
                            f"{module}:{node.lineno} {node.name} ({(node.end_lineno or 0) - node.lineno + 1} lines)"
                        )
        return single, count

    def assigned(self) -> Counter[str]:
        """Return how often each name is assigned."""
        names: Counter[str] = Counter()
        for module in self.modules:
            for node in ast.walk(self.trees[module]):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names[node.id] += 1
                elif isinstance(node, ast.arg):
                    names[node.arg] += 1
        return names

    def lines(self) -> tuple[int, int]:
        """Return lines, and lines that are comments only."""
        total = comments = 0
        for path in self.modules.values():
            text = path.read_text(encoding="utf-8")
            total += text.count("\n")
            comments += sum(
                token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
                for token in tokenize.generate_tokens(io.StringIO(text).readline)
            )
        return total, comments

    def figures(self) -> dict[str, str]:
        """Return the table that issue and ADR speak of."""
        total, comments = self.lines()
        single, private = self.private_functions()
        names = self.assigned()
        homely = sum(count for name, count in names.items() if name in HOMELY)
        return {
            "lines": f"{total}",
            "lines of code": f"{sum(code_lines(path.read_text(encoding='utf-8')) for path in self.modules.values())}",
            "files": f"{len(self.modules)}",
            "private functions used once": f"{len(single)} of {private} ({len(single) / max(private, 1):.0%})",
            "the same per 1000 lines": f"{1000 * len(single) / max(total, 1):.1f}",
            "comment lines per 1000": f"{1000 * comments / max(total, 1):.1f}",
            "homely words among assigned names": f"{homely / max(names.total(), 1):.2%}",
            "modules with one importer, in their folder": f"{len(self.importers())}",
            "circles between files": f"{len(self.circles())}",
            "imports past a face": f"{len(self.bypasses())}",
        }


SCORES = """model,family,released,params,benchmark,score
a,fa,2023-03-01,7e9,mmlu,0.35
b,fb,2023-06-01,7e9,mmlu,0.45
c,fc,2023-09-01,7e9,mmlu,0.55
d,fd,2024-01-01,7e9,mmlu,0.60
e,fe,2024-04-01,7e9,mmlu,0.62
f,ff,2024-07-01,7e9,mmlu,0.65
"""
KERNEL = {"ph": "X", "cat": "kernel", "pid": 0, "dur": 100.0}
EVENTS = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "traceEvents": [
        KERNEL | {"name": "gemm_kernel", "tid": 7, "ts": 10.0, "args": {"stream": 7, "device": 0}},
        KERNEL | {"name": "ncclDevKernel_AllReduce", "tid": 20, "ts": 60.0, "args": {"stream": 20, "device": 0}},
    ],
}
FLAG = "techniques compare --model llama-8b --cluster a100x8-tcp --nodes 2 --techniques ddp,co2 --json --set co2.tau=37"


class Walk:
    """Which files and functions of the package a call passes, and how often it goes from one file into another."""

    def __init__(self, call: Callable[[], object], mark: Callable[[FrameType], bool] = lambda frame: True) -> None:
        import densing

        home = str(Path(densing.__file__).parent)
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.moves = 0

        def loading(frame: FrameType | None) -> bool:
            while frame is not None and frame.f_code is not call.__code__:
                if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(home):
                    return True
                frame = frame.f_back
            return False

        def trace(frame: FrameType, event: str, argument: object) -> None:
            path, name = frame.f_code.co_filename, frame.f_code.co_qualname
            # Loading a module is no step of the walk, whatever it calls for that; nor is a comprehension a function.
            if not path.startswith(home) or name.endswith(">") or loading(frame) or not mark(frame):
                return
            self.files.add(path.removeprefix(home).lstrip("/"))
            self.functions.add((path, name))
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(home):
                caller = caller.f_back
            self.moves += caller is not None and caller.f_code.co_filename != path

        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(None)

    def __str__(self) -> str:
        return f"{len(self.files)} files, {len(self.functions)} functions, {self.moves} moves between files"


def walks(folder: Path) -> dict[str, Walk]:
    """Follow a score from CSV to doubling time, a trace event to exposed communication, and a flag to its technique."""
    # Names are looked up before the walk, as a caller's imports are.
    from densing import TrendData, estimate_trend, load_reference, table_densities
    from densing.cli import main as densing_main

    (folder / "scores.csv").write_text(SCORES, encoding="utf-8")
    (folder / "trace.json").write_text(json.dumps(EVENTS), encoding="utf-8")
    reference = load_reference("qwen1.5", "mmlu")

    def score() -> None:
        densities = table_densities(folder / "scores.csv", reference)
        estimate_trend(TrendData.from_density(densities), seed=0, permutations=50, bootstrap=50)

    def command(arguments: str) -> None:
        before, sys.argv = sys.argv, ["densing", *arguments.split()]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
                densing_main()
        finally:
            sys.argv = before

    def carries(frame: FrameType) -> bool:
        # As text, in a group of options, in a mapping by its name, or as a value: 37 is nothing
        # else here.
        return any("co2.tau=37" in str(value) or "'tau': 37" in str(value) or value == 37
                   for value in frame.f_locals.values()
                   if isinstance(value, (str, int, dict, list, tuple)) or is_dataclass(value))  # fmt: skip

    return {
        "a score, from CSV to doubling time": Walk(score),
        "a trace event, to exposed_comm_ns": Walk(lambda: command(f"profile {folder / 'trace.json'} --json")),
        "a flag, --set co2.tau=37": Walk(lambda: command(FLAG), carries),
    }


def main() -> None:
    """Print the figures, or what one of them counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument("--list", choices=("circles", "bypasses", "single", "importers", "homely"))
    parser.add_argument("--walks", action="store_true")
    parser.add_argument("--rooms", action="store_true", help="files, lines and lines of code of each room")
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    if arguments.walks:
        with tempfile.TemporaryDirectory() as folder:
            for label, walk in walks(Path(folder)).items():
                print(f"{label:45s} {walk}", *sorted(walk.files), sep="\n  ")  # noqa: T201
        return
    house = House(arguments.root, arguments.folder)
    if arguments.rooms:
        from tests.support.rooms import sizes

        print(sizes(house))  # noqa: T201
        return
    rows: list[str]
    match arguments.list:
        case "circles":
            rows = [" <-> ".join(group) for group in house.circles()]
        case "bypasses":
            rows = house.bypasses()
        case "single":
            rows = house.private_functions()[0]
        case "importers":
            rows = [f"{module} <- {user}" for module, user in house.importers()]
        case "homely":
            rows = [f"{count:5d} {name}" for name, count in house.assigned().most_common() if name in HOMELY]
        case _:
            rows = [f"{label:45s} {value}" for label, value in house.figures().items()]
    print("\n".join(rows))  # noqa: T201


if __name__ == "__main__":
    main()
