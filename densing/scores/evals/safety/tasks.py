"""Task files are data until the user says otherwise: what in them would run code, found before anything is loaded.

A file is read as a tree of nodes with line numbers: nothing is built from it, so nothing runs.
"""

from __future__ import annotations

import fnmatch
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from densing.core import InputError
from densing.scores.evals.safety.rules import CONFIRM, NEVER, TRUST, Allowed, refuse, trusted, truthy

MAX_FILE = 4 * 1024 * 1024
"""lm-eval's largest task file is below 100 kB."""
MAX_NODES = 200_000
MAX_DEPTH = 100
FUNCTION = "!function"
SUFFIXES = ("*.yaml", "*.yml")


@dataclass(frozen=True)
class Entry:
    """A key with its value somewhere in a task file.

    Parameters
    ----------
    where : str
        ``file:line``.
    key : str
        Key of the value, or of the list it stands in.
    node : object
        PyYAML's node.
    top : bool
        Whether it is the whole value of a key of the file itself.
    """

    where: str
    key: str
    node: Any
    top: bool = False

    @property
    def tag(self) -> str:
        """The node's YAML tag, ``!function`` or ``tag:yaml.org,2002:str``."""
        return str(self.node.tag)

    @property
    def text(self) -> str:
        """The value as written, empty for a list or mapping."""
        return self.node.value if isinstance(self.node.value, str) else ""

    def scalars(self) -> list[str]:
        """Return every value below this one as text."""
        return [text for _, node in _walk("", self.node) for text in [node.value] if isinstance(text, str)]


def regular_bytes(path: Path) -> bytes:
    """Read a file that must be a plain one of reasonable size: a pipe or a device would never end.

    Raises
    ------
    InputError
        When it is anything else.
    """
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode):
            raise InputError(f"{path}: not a regular file; remove it from the task folder")
        if kind.st_size > MAX_FILE:
            raise InputError(f"{path}: {kind.st_size} bytes, above the {MAX_FILE} a task file may have; split it")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); check the path") from error


def compose(path: Path) -> Any | None:
    """Return the root node of a YAML file, or None when it is no YAML (lm-eval skips such files, too).

    Raises
    ------
    InputError
        When the file would grow beyond all bounds once its aliases are written out, or is no regular file.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = regular_bytes(path)
    try:
        _refuse_unbounded(path, data)
        return yaml.compose(data, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def entries(path: Path) -> list[Entry]:
    """Return every key and value of a task file, at any depth, list items under the key of their list."""
    root = compose(path)
    if root is None:
        return []
    top = {id(child[1]) for child in root.value if isinstance(child, tuple)}
    nodes = sorted(_walk("", root), key=lambda item: item[1].start_mark.index)
    return [Entry(f"{path}:{node.start_mark.line + 1}", key, node, id(node) in top) for key, node in nodes]


def _refuse_unbounded(path: Path, data: bytes) -> None:
    """Refuse a file whose nodes, aliases written out, exceed ``MAX_NODES``, or that is nested too deeply."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(data, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            # An alias to what is still open contains itself.
            total += sizes.get(event.anchor, MAX_NODES + 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        if total > MAX_NODES or len(open_nodes) > MAX_DEPTH:
            raise InputError(
                f"{path}:{event.start_mark.line + 1}: more than {MAX_NODES} values once aliases are written out, "
                f"or nested deeper than {MAX_DEPTH}; a task file needs neither"
            )


def _walk(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, node) for a node and all below it; a node is visited once, however many aliases name it."""
    visited: set[int] = set()
    stack = [(key, node)]
    while stack:
        name, current = stack.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield name, current
        if not isinstance(current.value, list):
            continue
        for child in current.value:
            if isinstance(child, tuple):
                stack.append((str(child[0].value), child[1]))
                stack.append((name, child[0]))
            else:
                stack.append((name, child))


MAX_INCLUDES = 50
RUN_MODEL_CODE_UNMARKED = ("cruxeval", "longproc")
"""Folders of lm-eval 0.4.13 whose scoring runs (exec, eval, a compiler) what the model wrote without saying so."""
STANDARD_TAG = "tag:yaml.org,2002:"
PICKLE_BUILDERS = ("pandas", "spark", "sql", "generator", "cache")
PICKLES = (".pkl", ".pickle", ".pt", ".pth")
PROTOCOLS = ("http", "https", "hf", "file", "zip", "gzip", "tar", "bz2", "lzma", "xz", "zstd", "lz4")
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)(?:://|::)")

IncludePath = str | Path | Sequence[str | Path] | None


def check_tasks(
    include_path: IncludePath,
    tasks: Iterable[str | Path],
    *,
    trust_remote_code: bool = False,
    confirm_run_unsafe_code: bool = False,
) -> None:
    """Refuse task files that would run code no flag allows, before lm-eval sees them.

    Checked are the files below ``include_path`` that the requested tasks, groups and tags lead to, and tasks given
    as files, each with everything it includes. lm-eval's own task folder and this package's may name Python
    functions; nothing else may without a flag.

    Parameters
    ----------
    include_path : path or sequence of paths, optional
        Folders of task files, as lm-eval's ``--include_path``.
    tasks : iterable of str
        Names, patterns or files of tasks.
    trust_remote_code, confirm_run_unsafe_code : bool
        The user's consent, named as lm-eval's flags.

    Raises
    ------
    InputError
        Naming file, line, key, value and the flag that would allow it.

    Examples
    --------
    >>> check_tasks(None, ["hellaswag"])
    """
    allowed = Allowed(trust_remote_code, confirm_run_unsafe_code)
    names = [str(task) for task in tasks]
    for file in _reached(_files(include_path), names):
        check_file(file, allowed)
    for name in names:
        file = Path(name).expanduser()
        if file.suffix and file.is_file():
            check_file(file, allowed)


def check_file(path: Path, allowed: Allowed) -> None:
    """Refuse what one task file and its includes would run beyond what is allowed.

    Raises
    ------
    InputError
        As :func:`check_tasks`.
    """
    for file, nodes in _with_includes(path):
        foreign = not trusted(file)
        for entry in nodes:
            _check_anywhere(entry, allowed)
            if foreign:
                _check_foreign(entry, file, allowed)
            elif entry.tag == FUNCTION and file.parent.name in RUN_MODEL_CODE_UNMARKED:
                _need_confirmation(entry, f"{FUNCTION} {entry.text}", "runs code that the model writes", allowed)


def _check_anywhere(entry: Entry, allowed: Allowed) -> None:
    """Refuse what runs code that is in no installed package, whoever wrote the task."""
    if entry.key == "unsafe_code" and truthy(entry.text):
        _need_confirmation(entry, entry.text, "runs code that the model writes", allowed)
    if allowed.trust_remote_code or not entry.text:
        return
    if entry.key == "trust_remote_code" and truthy(entry.text) and _scripts_run():
        refuse(entry.where, entry.key, entry.text, "runs the data set's own Python script", TRUST)
    if entry.key == "hf_evaluate" and truthy(entry.text):
        refuse(entry.where, entry.key, entry.text, "downloads the metric as a Python script and runs it", TRUST)
    if entry.key == "custom_generate":
        refuse(entry.where, entry.key, entry.text, "runs generate.py of that repository or folder", TRUST)


def _check_foreign(entry: Entry, file: Path, allowed: Allowed) -> None:
    """Refuse what a task file of unknown origin may not ask for."""
    if entry.tag == FUNCTION:
        module = entry.text.rpartition(".")[0]
        script = file.parent / f"{module.replace('.', '/')}.py"
        code = script.resolve() if script.exists() else f"the module {module}"
        _need_confirmation(entry, f"{FUNCTION} {entry.text}", f"runs Python code of {code}", allowed)
    elif not entry.tag.startswith(STANDARD_TAG) or entry.tag.startswith(f"{STANDARD_TAG}python"):
        refuse(entry.where, entry.key, f"{entry.tag} {entry.text}", "is a tag that builds Python objects", NEVER)
    if allowed.trust_remote_code:
        return
    if entry.key == "dataset_path":
        _check_dataset(entry, file)
    elif entry.key == "metric" and (re.search(r"[/\\]", entry.text) or entry.text.endswith(".py")):
        refuse(entry.where, entry.key, entry.text, "loads the metric from a Python script", TRUST)
    elif entry.key in ("data_files", "data_dir"):
        for text in entry.scalars():
            unknown = [name for name in _PROTOCOL.findall(text) if name.lower() not in PROTOCOLS]
            if unknown:
                reason = f"uses the protocol {unknown[0]}, which may run code or programs"
                refuse(entry.where, entry.key, text, reason, TRUST)
            if text.lower().endswith(PICKLES):
                refuse(entry.where, entry.key, text, "is a pickle, and reading it runs what it holds", TRUST)
    elif entry.key == "trust_remote_code" and truthy(entry.text):
        refuse(entry.where, entry.key, entry.text, "asks for the data set's own Python script", TRUST)


def _need_confirmation(entry: Entry, value: str, reason: str, allowed: Allowed) -> None:
    if not allowed.confirm_run_unsafe_code:
        refuse(entry.where, entry.key, value, reason, CONFIRM)


def _check_dataset(entry: Entry, file: Path) -> None:
    if entry.text in PICKLE_BUILDERS:
        refuse(entry.where, entry.key, entry.text, "reads pickles or makes data by running code", TRUST)
    if entry.text.endswith(".py"):
        refuse(entry.where, entry.key, entry.text, "is a Python script", TRUST)
    for folder in {Path(entry.text).expanduser(), file.parent / entry.text}:
        if entry.text and (folder / f"{folder.name}.py").is_file():
            refuse(entry.where, entry.key, entry.text, f"is a folder with a loading script, {folder.name}.py", TRUST)


def _scripts_run() -> bool:
    """Whether the installed ``datasets`` still runs loading scripts (before 4.0); later ones ignore the request."""
    try:
        return int(version("datasets").split(".")[0]) < 4
    except (PackageNotFoundError, ValueError):
        return True


def _with_includes(path: Path) -> list[tuple[Path, list[Entry]]]:
    """Return a file's entries and those of every file it includes."""
    queue = [path.expanduser().resolve()]
    done: dict[Path, list[Entry]] = {}
    while queue:
        file = queue.pop()
        if file in done:
            continue
        if len(done) >= MAX_INCLUDES:
            raise InputError(f"{path}: includes more than {MAX_INCLUDES} files; put them into fewer")
        done[file] = entries(file)
        queue += [
            (file.parent / text).resolve()
            for entry in done[file]
            if entry.key == "include"
            for text in entry.scalars()
            if (file.parent / text).exists()
        ]
    return list(done.items())


def _files(include_path: IncludePath) -> list[Path]:
    """List the task files below the folders given; each must be a plain file, for lm-eval opens all of them."""
    if include_path is None:
        return []
    folders = [include_path] if isinstance(include_path, (str, Path)) else include_path
    files: list[Path] = []
    for folder in map(Path, folders):
        if not folder.expanduser().is_dir():
            raise InputError(f"--include_path {folder}: not a folder; name the folder that holds the task files")
        files += sorted(file for suffix in SUFFIXES for file in folder.expanduser().glob(f"**/{suffix}"))
    return files


def _reached(files: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    """Return the files that the requested tasks lead to, through groups and tags."""
    declared: dict[Path, set[str]] = {}
    referred: dict[Path, set[str]] = {}
    for file in files:
        regular_bytes(file)
        top = [entry for _, nodes in _with_includes(file) for entry in nodes if entry.top]
        declared[file] = {entry.text for entry in top if entry.key in ("task", "group")}
        declared[file] |= {text for entry in top if entry.key == "tag" for text in entry.scalars()}
        referred[file] = {text for entry in top if entry.key == "task" and not entry.text for text in entry.scalars()}

    def matches(file: Path) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in names for name in declared[file])

    names, reached, remaining = set(patterns), list[Path](), list(files)
    while new := [file for file in remaining if matches(file)]:
        reached += new
        remaining = [file for file in remaining if file not in new]
        names |= {name for file in new for name in referred[file]}
    return reached
