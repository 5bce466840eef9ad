"""Bytes of a trace file, inflated while they are read, within stated limits."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from densing.core import InputError
from densing.efficiency.traces.readers.inflate import MAGIC, Gunzip

_BLOCK = 1 << 17
_SMALL = 1 << 24
_ZIP, _ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Limits:
    """What a reader refuses, so that a broken or hostile file meets a sentence instead of the machine's memory.

    Parameters
    ----------
    event_bytes : int
        Text of one event; a longer one is skipped and counted. Memory stays within a few times this.
    ratio : float
        Inflated over compressed bytes; above it (and above 16 MiB inflated) the file is refused. Traces reach 10
        to 60, deflate's ceiling is 1032.
    inflated_bytes : int
        Text of the whole file.
    chunk_bytes : int
        Text decoded at once; memory grows with it.
    spans : int
        Pieces of device work, host calls and ranges that are kept; each different name, lane and communication counts
        as one more, and so does every 256 characters of names. To profile a span takes 0.1 to 0.45 kB: all of them
        4.5 GB.
    """

    event_bytes: int = 8 << 20
    ratio: float = 300.0
    inflated_bytes: int = 1 << 40
    chunk_bytes: int = 1 << 20
    spans: int = 10_000_000


class Source:
    """A trace file as a stream of JSON text: plain, gzip, or a member of a zip archive.

    Attributes
    ----------
    consumed : int
        Bytes of the file read so far.
    damage : str
        Why the stream ended before its end; empty if it did not.
    """

    def __init__(self, path: Path, member: str | None, label: str, limits: Limits) -> None:
        self.label, self.limits = label, limits
        self.consumed = self.produced = 0
        self.damage = ""
        self._archive: Any = None
        self._packed = 0
        try:
            self._raw: IO[bytes] = path.open("rb", buffering=0) if member is None else self._open_member(path, member)
            head = self._raw.read(4)
        except (OSError, RuntimeError, NotImplementedError, KeyError, EOFError, _bad_zip()) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{label}: cannot read ({reason}); check the file") from error
        if head == _ZIP and member is None:
            raise InputError(self._refuse("is a zip archive; name its members with find_traces"))
        self._pending = head
        self._gunzip = self._unpacker(head)

    def _open_member(self, path: Path, member: str) -> IO[bytes]:
        import zipfile

        self._archive = zipfile.ZipFile(path)
        self._packed = self._archive.getinfo(member).compress_size
        return self._archive.open(member)

    def _unpacker(self, head: bytes) -> Gunzip | None:
        if head == _ZSTD:
            raise InputError(self._refuse("is compressed with zstd; unpack it first (zstd -d)"))
        if head == _ZIP:
            raise InputError(self._refuse("is a zip archive inside another; unpack the outer one"))
        return Gunzip(self._read) if head[:2] == MAGIC else None

    def _refuse(self, reason: str) -> str:
        self.close()
        return f"{self.label}: {reason}"

    def readinto(self, target: memoryview) -> int:
        """Fill a buffer as far as the file goes; 0 at its end.

        Raises
        ------
        InputError
            When the file cannot be read or passes a limit.
        """
        try:
            count = self._plain(target) if self._gunzip is None else self._gunzip.into(target)
        except (OSError, zlib.error, EOFError, _bad_zip()) as error:
            self.damage = str(error)
            count = 0
        if self._gunzip is not None and self._gunzip.damage:
            self.damage = self._gunzip.damage
        self.produced += count
        self._check()
        return count

    def _check(self) -> None:
        limits = self.limits
        read = self._packed or self.consumed
        inflates = self._gunzip is not None or self._packed
        if inflates and self.produced > _SMALL and self.produced > limits.ratio * max(read, 1):
            raise InputError(
                f"{self.label}: inflates to more than {limits.ratio:g} times its size, as no trace does; "
                f"if it is one, unpack it first, or raise Limits(ratio=...)"
            )
        if self.produced > limits.inflated_bytes:
            raise InputError(
                f"{self.label}: holds more than {limits.inflated_bytes} bytes; split it, or raise "
                "Limits(inflated_bytes=...)"
            )

    def _read(self) -> bytes:
        if self._pending:
            block, self._pending = self._pending, b""
        else:
            block = self._raw.read(_BLOCK)
        self.consumed += len(block)
        return block

    def _plain(self, target: memoryview) -> int:
        if self._pending or self._archive is not None:
            block = self._pending or self._raw.read(min(_BLOCK, len(target)))
            self._pending = block[len(target) :]
            block = block[: len(target)]
            target[: len(block)] = block
            count = len(block)
        else:
            count = self._raw.readinto(target) or 0  # type: ignore[attr-defined]
        self.consumed += count
        return count

    def close(self) -> None:
        """Close the file."""
        for stream in (getattr(self, "_raw", None), self._archive):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bad_zip() -> type[Exception]:
    # Few traces are zip archives, and the module takes a tenth of a short command's time to load.
    import zipfile

    return zipfile.BadZipFile
