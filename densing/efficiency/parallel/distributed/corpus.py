"""Bytes of text as tokens: a user's files, or the documentation that every Python installation has."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError

Bytes = NDArray[np.uint8]
SUFFIXES = (".txt", ".md", ".text", ".rst")
MAX_BYTES = 256 * 1024 * 1024
LEAST_BYTES = 10_000
HELD_OUT = 20
"""One byte in so many, at the end of the text, is held out."""


def load_bytes(corpus: str = "") -> tuple[Bytes, Bytes]:
    """Return the training part and the held-out end of a text, as bytes.

    Parameters
    ----------
    corpus : str
        A file, or a folder whose ``.txt``, ``.text``, ``.md`` and ``.rst`` files are read in order of name. Empty: the
        language reference and the docstrings of Python's standard library, in an order that depends on their content
        only; the text differs between versions of Python, :func:`digest` tells which one it was.

    Returns
    -------
    train, held_out : ndarray of uint8
        The last twentieth is held out.

    Raises
    ------
    InputError
        When there is no text to read, too little of it, or too much.
    """
    data = np.frombuffer(_installed() if not corpus else _read(Path(corpus)), dtype=np.uint8)
    if len(data) < LEAST_BYTES:
        raise InputError(f"corpus {corpus!r}: {len(data)} bytes are too few; {LEAST_BYTES:,} or more are needed")
    cut = len(data) - len(data) // HELD_OUT
    return data[:cut], data[cut:]


def digest(train: Bytes, held_out: Bytes) -> str:
    """Return the sha256 of the whole text, in hexadecimal."""
    return hashlib.sha256(train.tobytes() + held_out.tobytes()).hexdigest()


def batches(train: Bytes, batch: int, sequence: int, seed: int, rank: int, step: int) -> NDArray[np.int64]:
    """Return the batch of one rank and step: passages drawn by chance, the same whenever it is asked for.

    Parameters
    ----------
    train : ndarray of uint8
    batch, sequence : int
        Passages, and tokens that are predicted in each.
    seed, rank, step : int
        They alone decide what is drawn; a resumed run needs no state.

    Returns
    -------
    ndarray of int64, shape (batch, sequence + 1)

    Raises
    ------
    InputError
        When the text is shorter than a passage.

    Examples
    --------
    >>> text = np.arange(100, dtype=np.uint8)
    >>> batches(text, 2, 3, seed=0, rank=1, step=5)
    array([[80, 81, 82, 83],
           [37, 38, 39, 40]])
    """
    starts = len(train) - sequence
    if starts < 1:
        raise InputError(f"sequence={sequence}: the text has {len(train)} bytes to train on; choose shorter sequences")
    begin = np.random.default_rng([seed, rank, step]).integers(0, starts, size=batch)
    return train[begin[:, None] + np.arange(sequence + 1)].astype(np.int64)


def held_out_batches(held_out: Bytes, batch: int, sequence: int, passages: int = 64) -> Iterator[NDArray[np.int64]]:
    """Yield evenly spaced passages of the held-out text, (at most ``batch``, sequence + 1) at a time.

    Raises
    ------
    InputError
        When the text is shorter than a passage.
    """
    starts = len(held_out) - sequence
    if starts < 1:
        raise InputError(f"sequence={sequence}: {len(held_out)} bytes are held out; choose shorter sequences")
    # Overlapping passages would count the same bytes twice.
    count = max(1, min(passages, len(held_out) // (sequence + 1)))
    begin = np.linspace(0, starts - 1, count).astype(np.int64)
    rows = held_out[begin[:, None] + np.arange(sequence + 1)].astype(np.int64)
    for first in range(0, count, batch):
        yield rows[first : first + batch]


def _read(source: Path) -> bytes:
    try:
        files = [source] if source.is_file() else sorted(f for f in source.rglob("*") if f.suffix in SUFFIXES)
        if not files:
            raise InputError(f"corpus {source}: no such file, or a folder without {', '.join(SUFFIXES)} files")
        size = sum(file.stat().st_size for file in files)
        if size > MAX_BYTES:
            raise InputError(f"corpus {source}: {size} bytes; at most {MAX_BYTES} are read, take a part of it")
        return b"\n".join(file.read_bytes() for file in files)
    except (OSError, ValueError) as error:
        raise InputError(f"corpus {source}: cannot read ({error}); check path and rights") from error


@cache
def _installed() -> bytes:
    """Join what Python's installation says of itself; a hash decides the order, so that the end is like the rest."""
    from pydoc_data.topics import topics

    texts = list(topics.values())
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                texts.append(ast.get_docstring(node) or "")
    pieces = {text.strip().encode("utf-8", "replace") for text in texts}
    return b"\n\n".join(sorted(pieces, key=lambda piece: hashlib.sha256(piece).digest()))
