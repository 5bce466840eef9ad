"""Task files are data until the user says otherwise: what in them would run code, found before anything is loaded."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from densing.core import InputError
from densing.scores.evals.safety.rules import CONFIRM, NEVER, TRUST, Allowed, refuse, trusted, truthy
from densing.scores.evals.safety.yamls import FUNCTION, SUFFIXES, Entry, entries, regular_bytes

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
    wanted = [str(task) for task in tasks]
    for file in _reached(_files(include_path), wanted):
        check_file(file, allowed)
    for task in wanted:
        file = Path(task).expanduser()
        if file.suffix and file.is_file():
            check_file(file, allowed)


def check_file(path: Path, allowed: Allowed) -> None:
    """Refuse what one task file and its includes would run beyond what is allowed.

    Raises
    ------
    InputError
        As :func:`check_tasks`.
    """
    for file, found in _with_includes(path):
        ours = trusted(file)
        for entry in found:
            _check_anywhere(entry, allowed)
            if not ours:
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
        _need_confirmation(entry, f"{FUNCTION} {entry.text}", _code_of(entry.text, file), allowed)
    elif not entry.tag.startswith(STANDARD_TAG) or entry.tag.startswith(f"{STANDARD_TAG}python"):
        refuse(entry.where, entry.key, f"{entry.tag} {entry.text}", "is a tag that builds Python objects", NEVER)
    if allowed.trust_remote_code:
        return
    if entry.key == "dataset_path":
        _check_dataset(entry, file)
    elif entry.key == "metric" and (re.search(r"[/\\]", entry.text) or entry.text.endswith(".py")):
        refuse(entry.where, entry.key, entry.text, "loads the metric from a Python script", TRUST)
    elif entry.key in ("data_files", "data_dir"):
        _check_data_files(entry)
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
    for place in {Path(entry.text).expanduser(), file.parent / entry.text}:
        if entry.text and (place / f"{place.name}.py").is_file():
            refuse(entry.where, entry.key, entry.text, f"is a folder with a loading script, {place.name}.py", TRUST)


def _check_data_files(entry: Entry) -> None:
    for text in entry.scalars():
        strange = [name for name in _PROTOCOL.findall(text) if name.lower() not in PROTOCOLS]
        if strange:
            refuse(
                entry.where, entry.key, text, f"uses the protocol {strange[0]}, which may run code or programs", TRUST
            )
        if text.lower().endswith(PICKLES):
            refuse(entry.where, entry.key, text, "is a pickle, and reading it runs what it holds", TRUST)


def _code_of(reference: str, file: Path) -> str:
    module = reference.rpartition(".")[0]
    beside = file.parent / f"{module.replace('.', '/')}.py"
    return f"runs Python code of {beside.resolve() if beside.exists() else f'the module {module}'}"


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
    found: list[Path] = []
    for folder in map(Path, folders):
        if not folder.expanduser().is_dir():
            raise InputError(f"--include_path {folder}: not a folder; name the folder that holds the task files")
        found += sorted(file for suffix in SUFFIXES for file in folder.expanduser().glob(f"**/{suffix}"))
    return found


def _reached(files: Sequence[Path], wanted: Sequence[str]) -> list[Path]:
    """Return the files that the wanted tasks lead to, through groups and tags."""
    declared: dict[Path, set[str]] = {}
    referred: dict[Path, set[str]] = {}
    for file in files:
        regular_bytes(file)
        found = [entry for _, part in _with_includes(file) for entry in part if entry.top]
        declared[file] = {entry.text for entry in found if entry.key in ("task", "group")}
        declared[file] |= {text for entry in found if entry.key == "tag" for text in entry.scalars()}
        referred[file] = {text for entry in found if entry.key == "task" and not entry.text for text in entry.scalars()}
    names, reached = set(wanted), list[Path]()
    left = list(files)
    while new := [file for file in left if _matches(declared[file], names)]:
        reached += new
        left = [file for file in left if file not in new]
        names |= {name for file in new for name in referred[file]}
    return reached


def _matches(declared: set[str], wanted: set[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted for name in declared)
