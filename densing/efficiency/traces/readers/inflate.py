"""gzip streams, inflated piece by piece: what precedes a damaged place is kept, a wrong checksum costs nothing."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

MAGIC = b"\x1f\x8b"

_PIECE = 1 << 15
_LONGEST_HEADER = 1 << 20
_EXTRA, _NAME, _COMMENT, _CHECK = 4, 8, 16, 2


class Gunzip:
    """Inflates one or several gzip streams that follow one another.

    Parameters
    ----------
    read : callable
        Returns the next block of compressed bytes, empty at the end.

    Attributes
    ----------
    damage : str
        Why inflating ended or what did not check; empty if nothing.

    Examples
    --------
    >>> import gzip, io
    >>> packed = io.BytesIO(gzip.compress(b"hello"))
    >>> target = bytearray(9)
    >>> Gunzip(lambda: packed.read(99)).into(memoryview(target)), bytes(target[:5])
    (5, b'hello')
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._held = b""
        self._inflater: Any = None
        self._raw, self._errors, self._crc32 = _engine()
        self._crc = 0
        self.damage = ""

    def into(self, target: memoryview) -> int:
        """Fill some of a buffer; 0 at the end."""
        while True:
            if self._inflater is None and not self._begin():
                return 0
            if self._inflater.eof:
                self._finish()
                continue
            block = self._inflater.unconsumed_tail or self._block()
            try:
                data = self._inflater.decompress(block, min(len(target), _PIECE))
            except self._errors as error:
                return self._end(f"the compressed data are damaged: {error}")
            if data:
                self._crc = self._crc32(data, self._crc)
                target[: len(data)] = data
                return len(data)
            if not block and not self._inflater.eof:
                return self._end("the compressed data break off")

    def _end(self, damage: str) -> int:
        self.damage = self.damage or damage
        self._read = bytes
        self._held = b""
        self._inflater = None
        return 0

    def _block(self) -> bytes:
        block, self._held = self._held or self._read(), b""
        return block

    def _begin(self) -> bool:
        """Pass over a header; False at the end, or before what is no gzip."""
        length = None
        while length is None:
            length = header_length(self._held)
            if length is None:
                block = self._read() if len(self._held) < _LONGEST_HEADER else b""
                if not block:
                    self._end("the compressed data break off" if self._held else "")
                    return False
                self._held += block
        if length == 0:
            self._end("bytes after the compressed data are no gzip")
            return False
        self._held = self._held[length:]
        self._inflater, self._crc = self._raw(-15), 0
        return True

    def _finish(self) -> None:
        """Check a stream's end, and go on to the next."""
        held = self._inflater.unused_data + self._held
        while len(held) < 8 and (block := self._read()):
            held += block
        if int.from_bytes(held[:4], "little") != self._crc:
            self.damage = self.damage or "the checksum of the compressed data is wrong"
        self._inflater, self._held = None, held[8:].lstrip(b"\x00")
        while not self._held and (block := self._read()):
            self._held = block.lstrip(b"\x00")


def header_length(data: bytes) -> int | None:
    """Return the length of a gzip header, 0 if it is none, None if more bytes must be seen.

    Source: RFC 1952, 2.3.

    Examples
    --------
    >>> import gzip
    >>> header_length(gzip.compress(b"")), header_length(b"{}"), header_length(b"")
    (10, 0, None)
    """
    if not MAGIC.startswith(data[:2]) and data[:2] != MAGIC:
        return 0
    if len(data) < 10:
        return None
    flags, at = data[3], 10
    if flags & _EXTRA:
        at += 2 + int.from_bytes(data[10:12], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            end = data.find(b"\x00", at)
            if end < 0:
                return None
            at = end + 1
    at += 2 if flags & _CHECK else 0
    return at if at <= len(data) else None


def _engine() -> tuple[Callable[..., Any], tuple[type[Exception], ...], Callable[[bytes, int], int]]:
    """Return an inflater, its errors and a checksum: Intel's ISA-L where installed (twice as fast), or zlib."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj, (zlib.error,), zlib.crc32
    errors: tuple[Any, ...] = (zlib.error, isal_zlib.error)
    return isal_zlib.decompressobj, errors, isal_zlib.crc32
