"""One trace file: what its name says, and its bytes, inflated while they are read, within stated limits."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

from densing.core import InputError

Detail = Literal["auto", "device", "host"]
Progress = Callable[[int], None]
HEAD_BYTES = 1 << 16
"""Bytes of a file's content by which its format is recognised."""

_RANK = re.compile(r"(?i)([a-z]*)([-_.]?)(rank)[-_=. ]?(0*\d{1,6})(?!\d)")
_WORKER = re.compile(r"(?i)(?<![a-z])(?:worker|trainer)[-_=. ]?(0*\d{1,6})(?!\d)")
_GLOBAL = {"global", "world"}
# Ranks within a machine or within one dimension of the layout: several traces of a run share them.
_PARTIAL = {"local", "node", "group", "tp", "pp", "dp", "cp", "ep", "sp", "mp", "tensor", "pipeline"}
_BLOCK = 1 << 17
_SMALL = 1 << 24
ZIP, _GZIP, _ZSTD = b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 15
_LONGEST_HEADER = 1 << 20
_EXTRA, _NAME, _COMMENT, _CHECK = 4, 8, 16, 2


@dataclass(frozen=True)
class TraceFile:
    """One trace: a file, or a member of a zip archive.

    Parameters
    ----------
    path : Path
    member : str, optional
        Name within the archive.
    rank : int, optional
        The rank given by the user, in place of the file's.
    packed : int, optional
        Compressed size of the member in its archive, if known.

    Examples
    --------
    >>> TraceFile(Path("run.zip"), "rank3.json").label
    'run.zip:rank3.json'
    """

    path: Path
    member: str | None = None
    rank: int | None = None
    packed: int | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """The file's name in messages."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @property
    def file_name(self) -> str:
        """The name without folders, of the member where there is one."""
        return Path(self.member).name if self.member else self.path.name

    @cached_property
    def size(self) -> int:
        """Bytes on disk, 0 if it is not there; of a member, its share of the archive."""
        if self.packed is not None:
            return self.packed
        try:
            if self.member is None:
                return self.path.stat().st_size
            with _zipfile().ZipFile(self.path) as archive:
                return int(archive.getinfo(self.member).compress_size)
        except (OSError, KeyError, NotImplementedError, _zipfile().BadZipFile):
            return 0

    def rank_in_name(self) -> int | None:
        """Return the rank stated in the file's name, else in its folder's.

        The most specific word decides: ``global_rank`` before ``rank`` before ``worker`` and ``trainer``. A rank that
        is only one within a machine or a dimension of the layout (``local_rank``, ``tp_rank``, ...) is not taken.

        Examples
        --------
        >>> TraceFile(Path("logs/worker12_step_4.json")).rank_in_name()
        12
        >>> TraceFile(Path("local_rank1_global_rank9.json")).rank_in_name()
        9
        >>> TraceFile(Path("rank_3/trace.json")).rank_in_name(), TraceFile(Path("trace.json")).rank_in_name()
        (3, None)
        """
        folder = Path(self.member).parent if self.member else self.path.parent
        for name in (self.file_name, folder.name):
            ranks: list[int] = []
            for match in _RANK.finditer(name):
                prefix, joint, rank, number = match.groups()
                if prefix.lower() in _GLOBAL:
                    return int(number)
                # "frank3" tells no rank, "hostRank3" does.
                is_word = not prefix or joint or (rank[0] == "R" and prefix[-1].islower())
                if is_word and prefix.lower() not in _PARTIAL:
                    ranks.append(int(number))
            if ranks:
                return ranks[0]
            if worker := _WORKER.search(name):
                return int(worker.group(1))
        return None


@dataclass(frozen=True)
class Limits:
    """Limits of a reader: a broken or hostile file gets an error message instead of exhausting memory.

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


class Source(io.RawIOBase):
    """A trace file as a stream of JSON text, inflated where it is packed: plain, gzip, zstd, or in a zip archive.

    A file object, so that ``json.load(source)`` and ``io.BufferedReader(source)`` read it.

    Attributes
    ----------
    consumed : int
        Bytes of the file read so far.
    damage : str
        Why the stream ended early; otherwise empty.
    """

    def __init__(self, path: Path, member: str | None, label: str, limits: Limits) -> None:
        super().__init__()
        self.label, self.limits = label, limits
        self.consumed = self.produced = 0
        self.damage = ""
        self._archive: Any = None
        self._packed = 0
        self._zstd: Any = None
        try:
            if member is None:
                self._raw: IO[bytes] = path.open("rb", buffering=0)
            else:
                self._archive = _zipfile().ZipFile(path)
                self._packed = self._archive.getinfo(member).compress_size
                self._raw = self._archive.open(member)
            head = self._raw.read(4)
        except (OSError, RuntimeError, NotImplementedError, KeyError, EOFError, _zipfile().BadZipFile) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{label}: cannot read ({reason}); check the file") from error
        if head == ZIP and member is None:
            raise InputError(self._refuse("is a zip archive; name its members with find_traces"))
        if head == ZIP:
            raise InputError(self._refuse("is a zip archive inside another; unpack the outer one"))
        if head == _ZSTD:
            self._raw.seek(0)
            self._zstd, head = _zstd_stream(self._raw), b""
        self._pending = head
        self._gunzip = Gunzip(self._read) if head[:2] == _GZIP else None

    def _refuse(self, reason: str) -> str:
        self.close()
        return f"{self.label}: {reason}"

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the bytes available and return their number; 0 at the end of the file.

        Raises
        ------
        InputError
            When the file cannot be read or passes a limit.
        """
        target = memoryview(buffer)
        try:
            if self._zstd is not None:
                count = int(self._zstd.readinto(target))
                self.consumed = self._raw.tell()
            else:
                count = self._plain(target) if self._gunzip is None else self._gunzip.into(target)
        except (OSError, ValueError, zlib.error, EOFError, _zipfile().BadZipFile) as error:
            self.damage = str(error)
            count = 0
        if self._gunzip is not None and self._gunzip.damage:
            self.damage = self._gunzip.damage
        self.produced += count
        limits = self.limits
        read = self._packed or self.consumed
        inflates = self._gunzip is not None or self._zstd is not None or self._packed
        if inflates and self.produced > _SMALL and self.produced > limits.ratio * max(read, 1):
            raise InputError(
                f"{self.label}: inflates to more than {limits.ratio:g} times its size, unlike any trace; "
                f"if it is one, unpack it first, or raise Limits(ratio=...)"
            )
        if self.produced > limits.inflated_bytes:
            raise InputError(
                f"{self.label}: holds more than {limits.inflated_bytes} bytes; split it, or raise "
                "Limits(inflated_bytes=...)"
            )
        return count

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
        super().close()


def _zstd_stream(raw: IO[bytes]) -> Any:
    """Return what inflates a zstd stream: Arrow's, which is installed for Parquet anyway."""
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")


def _zipfile() -> Any:
    # Few traces are zip archives, and the module takes a tenth of a short command's time to load.
    import zipfile

    return zipfile


class Gunzip:
    """Inflates one or several gzip streams that follow one another.

    Parameters
    ----------
    read : callable
        Returns the next block of compressed bytes, empty at the end.

    Attributes
    ----------
    damage : str
        Why inflating ended early, or which check failed; otherwise empty.

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
        """Fill a buffer with the bytes available and return their number; 0 at the end."""
        while True:
            if self._inflater is None and not self._begin():
                return 0
            if self._inflater.eof:
                self._finish()
                continue
            block = self._inflater.unconsumed_tail
            if not block:
                block, self._held = self._held or self._read(), b""
            try:
                data = self._inflater.decompress(block, min(len(target), _PIECE))
            except self._errors as error:
                return self._end(f"the compressed data are damaged: {error}")
            if data:
                self._crc = self._crc32(data, self._crc)
                target[: len(data)] = data
                return len(data)
            if not block and not self._inflater.eof:
                return self._end("the compressed data end early")

    def _end(self, damage: str) -> int:
        self.damage = self.damage or damage
        self._read = bytes
        self._held = b""
        self._inflater = None
        return 0

    def _begin(self) -> bool:
        """Skip a header; False at the end, or if the data are not gzip."""
        length = None
        while length is None:
            length = header_length(self._held)
            if length is None:
                block = self._read() if len(self._held) < _LONGEST_HEADER else b""
                if not block:
                    self._end("the compressed data end early" if self._held else "")
                    return False
                self._held += block
        if length == 0:
            self._end("bytes after the compressed data are not gzip")
            return False
        self._held = self._held[length:]
        self._inflater, self._crc = self._raw(-15), 0
        return True

    def _finish(self) -> None:
        """Check a stream's end and continue with the next."""
        # The checksum and the length, four bytes each; files may be padded with zeros after them.
        trailer = self._inflater.unused_data + self._held
        while len(trailer) < 8 and (block := self._read()):
            trailer += block
        if int.from_bytes(trailer[:4], "little") != self._crc:
            self.damage = self.damage or "the checksum of the compressed data is wrong"
        self._inflater, self._held = None, trailer[8:].lstrip(b"\x00")
        while not self._held and (block := self._read()):
            self._held = block.lstrip(b"\x00")


def header_length(data: bytes) -> int | None:
    """Return the length of a gzip header, 0 if there is none, None if more bytes are needed.

    Source: RFC 1952, 2.3.

    Examples
    --------
    >>> import gzip
    >>> header_length(gzip.compress(b"")), header_length(b"{}"), header_length(b"")
    (10, 0, None)
    """
    if not _GZIP.startswith(data[:2]) and data[:2] != _GZIP:
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


def gzip_module() -> Any:
    """Return the module that writes gzip files: Intel's ISA-L where installed, or the standard library's."""
    try:
        from isal import igzip
    except ImportError:
        import gzip

        return gzip
    return igzip
