"""Files of the project: read whole and checked, written atomically."""

from __future__ import annotations

import csv
import io
import stat
from pathlib import Path

import pandas as pd

from densing.core.atomic import replacing
from densing.core.errors import InputError, TableError

MAX_BYTES = 64 * 1024 * 1024
MAX_FIELD = 32 * 1024
# Source: Git LFS specification, https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
LFS_POINTER = "version https://git-lfs.github.com/spec/"


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
        When the place cannot be written to, or the text holds bytes that were no text (from a command line).
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{path}: {text[error.start]!r} cannot be written as UTF-8; retype the name") from error
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def read_text(source: Path | str | io.TextIOBase, name: str) -> str:
    """Read a text file or stream whole.

    Raises
    ------
    InputError
        When it cannot be read, is not UTF-8, is larger than ``MAX_BYTES``, a named pipe or a Git LFS pointer.
    """
    try:
        if isinstance(source, io.TextIOBase):
            return source.read()
        refuse_no_file(Path(source), name)
        with Path(source).open("rb") as stream:
            # Devices and pipes have no size to ask for.
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InputError(f"{name}: larger than {MAX_BYTES // 2**20} MiB; split the file")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot read ({reason}); check the path") from error
    if text.startswith(LFS_POINTER):
        raise InputError(f"{name}: a Git LFS pointer, not the file that it stands for; run `git lfs pull` there")
    return text


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


def parse_csv(text: str, name: str) -> tuple[list[str], dict[int, list[str]]]:
    """Split a CSV text into its header and its filled rows by row number in the file.

    Raises
    ------
    InputError, TableError
        When the text is no table; the message names the row and the remedy.
    """
    if "\x00" in text:
        raise InputError(f"{name}: holds a NUL byte; it is not a CSV file")
    limit = csv.field_size_limit(MAX_FIELD)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise InputError(f"{name}: not readable as CSV ({error}); check quotes and length of cells") from error
    finally:
        csv.field_size_limit(limit)
    filled = {n: line for n, line in enumerate(lines, start=1) if any(cell.strip() for cell in line)}
    if not filled:
        raise InputError(f"{name}: empty; a header row and at least one data row are needed")
    header = [cell.strip() for cell in filled.pop(next(iter(filled)))]
    repeated = {cell for cell in header if header.count(cell) > 1}
    if repeated:
        raise InputError(f"{name}: header repeats {', '.join(sorted(repeated))}; rename one of them")
    if not filled:
        raise InputError(f"{name}: has a header but no data row")
    ragged = [
        f"row {number}: {len(line)} cells where the header has {len(header)}; quote cells that hold commas"
        for number, line in filled.items()
        if len(line) != len(header)
    ]
    if ragged:
        raise TableError(name, ragged)
    return header, filled
