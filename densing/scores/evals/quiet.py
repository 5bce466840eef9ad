"""lm-eval's own output into a file, and what it does again for every task done once."""

from __future__ import annotations

import copy
import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from densing.core import mask, storage_errors


@contextmanager
def output_into(log: Path, secrets: tuple[str, ...] = ()) -> Iterator[None]:
    """Send everything that is printed, by this process or its children, to a file while the context lasts.

    Parameters
    ----------
    log : path
        The file; appended to.
    secrets : tuple of str
        Credentials to mask.
    """
    with storage_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with ExitStack() as stack:
        stack.callback(os.close, handle)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(handle, number)
        writer = _Masked(os.fdopen(os.dup(handle), "w", encoding="utf-8", errors="backslashreplace"), secrets)
        stack.callback(writer.close)
        stack.enter_context(_speaking_into(writer))
        yield


@contextmanager
def _speaking_into(writer: Any) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    _hand_over(before, writer)
    sys.stdout = sys.stderr = writer
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        # Handlers that came up meanwhile hold the writer too.
        _hand_over((writer,), before[1])


def _hand_over(streams: Sequence[Any], target: Any) -> None:
    loggers = [logging.getLogger(), *map(logging.getLogger, tuple(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        # The handler of last resort looks the stream up each time: it has none of its own.
        if any(vars(handler).get("stream") is stream for stream in streams):
            vars(handler)["stream"] = target


class _Masked:
    """A text stream that writes line by line, without credentials.

    Libraries loaded meanwhile keep hold of it: once closed, it passes on to standard error.
    """

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, stream: TextIO, secrets: tuple[str, ...]) -> None:
        self._stream: TextIO | None = stream
        self._secrets, self._line = secrets, ""

    def write(self, text: str) -> int:
        if self._stream is None:
            return sys.__stderr__.write(text) if sys.__stderr__ else 0
        # Progress bars overwrite their line; in a file that would be one line of megabytes.
        *whole, self._line = (self._line + text).replace("\r", "\n").split("\n")
        if whole:
            self._stream.write(mask("\n".join(whole) + "\n", self._secrets))
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 2 if self._stream is None else self._stream.fileno()

    def close(self) -> None:
        if self._line:
            self.write("\n")
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


@contextmanager
def shared_work() -> Iterator[None]:
    """Let lm-eval find out about the machine once, and read each data set once, while the context lasts.

    The machine's description spawns ``pip list`` and takes seconds for every task; a data set is read once for the
    identity of a unit, once for its evaluation, and again for every model.
    """
    import datasets

    with ExitStack() as stack:
        _replace(stack, datasets, "load_dataset", _remembering(datasets.load_dataset))
        try:
            from torch.utils import collect_env
        except ImportError:
            pass
        else:
            _replace(stack, collect_env, "get_pretty_env_info", _machine(collect_env.get_pretty_env_info))
        yield


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


_MACHINE: list[str] = []


def _machine(ask: Callable[[], str]) -> Callable[[], str]:
    def get_pretty_env_info() -> str:
        if not _MACHINE:
            _MACHINE.append(ask())
        return _MACHINE[0]

    return get_pretty_env_info


def _remembering(load: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[str, Any] = {}

    @functools.wraps(load)
    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        try:
            asked = json.dumps([args, kwargs], sort_keys=True)
        except TypeError:
            return load(*args, **kwargs)
        if asked not in known:
            known[asked] = load(*args, **kwargs)
        # A task may add splits to its own dictionary of them; the data below never change.
        return copy.copy(known[asked])

    return load_dataset
