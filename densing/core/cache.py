"""Results that take seconds or minutes, cached under a name that covers all of their inputs."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np
import pandas as pd

from densing.core.errors import DensingError
from densing.core.files import cache_folder, replacing

LOG = logging.getLogger(__name__)
T = TypeVar("T")
SOURCES = ("*.py", "*.csv", "*.toml", "*.json")
"""What of a wing results are made of: code, tables, presets and records."""
FOLDER = "results"
LIBRARIES = ("numpy", "scipy", "statsmodels")
"""What computes: another version of one may give another last digit."""


def cached(
    make: Callable[[], T],
    kind: type[T],
    name: str,
    *inputs: object,
    by: Callable[..., Any],
    most: int = 1,
    whole: Callable[[T], bool] = lambda _: True,
) -> T:
    """Return what is kept of a result, or make it and keep it.

    Nothing that is read from the folder is run: a result is plain data of the types that its class declares. Of
    processes side by side that want the same result one makes it, and the others read what it kept.

    Parameters
    ----------
    make : callable
        Works the result out.
    kind : type
        Its own: a table, or a dataclass of plain data, other dataclasses, arrays of numbers and tables.
    name : str
        Of the result, for its file.
    *inputs : object
        What the result depends on; tables and arrays by their content.
    by : callable
        The function that makes it: a change in the code and tables of its wing (``densing.scores``) or of the core
        makes it anew, since rooms compute with each other's functions, and so does another version of
        :data:`LIBRARIES`.
    most : int
        How many results of this name are kept, the newest.
    whole : callable
        Whether a result may be kept: one that something went wrong with is not.

    Examples
    --------
    >>> from densing.scores.study.recovery import Recovery
    >>> table = pd.DataFrame({"world": [1], "hi": [float("inf")], "held": [True]})
    >>> made = [cached(lambda: Recovery(table), Recovery, "example", 0, by=cached) for _ in range(2)]
    >>> made[1].table.to_dict("records")
    [{'world': 1, 'hi': inf, 'held': True}]
    """
    versions = [version(library) for library in LIBRARIES]
    digest = hashlib.sha256(msgspec.msgpack.encode([inputs, versions], enc_hook=_plain))
    wing = ".".join(by.__module__.split(".")[:2])
    for folder in (Path(sys.modules[wing].__path__[0]), Path(__file__).parent):
        for source in sorted(path for kind in SOURCES for path in folder.rglob(kind)):
            digest.update(source.read_bytes())
    path = cache_folder() / FOLDER / f"{name}-{digest.hexdigest()[:24]}.msgpack"

    def read() -> T | None:
        # Whatever is wrong with a kept file: the result is made anew.
        with suppress(OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError):
            return msgspec.msgpack.decode(path.read_bytes(), type=kind, dec_hook=_restored)
        return None

    if (result := read()) is None:
        with one_at_a_time(path.parent.with_name("locks") / path.stem):
            if (result := read()) is None:
                LOG.info("%s: worked out anew", name)
                result = make()
                if whole(result):
                    _keep(result, path, f"{name}-*.msgpack", most)
                return result
    LOG.info("%s: read from %s", name, path)
    return result


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process at a time do something; all at once where the lock cannot be written.

    Examples
    --------
    >>> with one_at_a_time(cache_folder() / "locks" / "example"):
    ...     pass
    """
    # Only what is worked out anew waits for this import.
    from filelock import FileLock

    lock = FileLock(path)
    held = False
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        held = True
    try:
        yield
    finally:
        if held:
            # Who waits for a file that is gone looks for the result first. Windows removes no open file.
            with suppress(OSError):
                path.unlink()
            lock.release()


def _keep(result: object, path: Path, kind: str, most: int) -> None:
    """Write a result, and remove the oldest of its kind beyond ``most``."""
    with suppress(OSError, DensingError):
        content = msgspec.msgpack.encode(result, enc_hook=_plain)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        for old in sorted(path.parent.glob(kind), key=lambda each: each.stat().st_mtime)[:-most]:
            old.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    if isinstance(value, pd.DataFrame):
        return {str(name): value[name].to_numpy() for name in value}
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype == object else np.ascontiguousarray(value).tobytes()
        return {"type": value.dtype.str, "shape": value.shape, "content": content}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pd.Timestamp) or value is pd.NaT or value is pd.NA:
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be kept")


def _restored(kind: Any, value: Any) -> Any:
    if kind is pd.DataFrame:
        return pd.DataFrame({name: _array(column) for name, column in value.items()})
    if get_origin(kind) is np.ndarray:
        return _array(value)
    raise TypeError(kind)


def _array(value: dict[str, Any]) -> np.ndarray[Any, Any] | list[Any]:
    if isinstance(value["content"], list):
        return list(value["content"])
    return np.frombuffer(value["content"], dtype=value["type"]).reshape(value["shape"]).copy()
