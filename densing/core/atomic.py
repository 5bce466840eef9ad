"""Files that are whole or absent, written through a temporary neighbour; standard library only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from densing.core.errors import InputError


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
        raise InputError(f"{path}: cannot write (is no regular file); choose another name")
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
        raise InputError(f"{path}: cannot write ({error.strerror or error}); check space, rights and place") from error
