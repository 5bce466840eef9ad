"""A sliding buffer over the text of a trace."""

from __future__ import annotations

from collections.abc import Callable

CHUNK = 1 << 20


class TooLong(Exception):
    """What is looked for does not fit into the largest buffer allowed."""


class Feed:
    """The text from ``lo`` to ``hi`` of ``data``; it grows on demand up to a limit.

    Parameters
    ----------
    read : callable
        Fills a memoryview and returns how many bytes it wrote, 0 at the end.
    size, limit : int
        Usual and largest number of bytes held.

    Examples
    --------
    >>> import io
    >>> feed = Feed(io.BytesIO(b"0123456789").readinto, size=4, limit=8)
    >>> feed.fill(3), bytes(feed.data[feed.lo : feed.hi][:3])
    (True, b'012')
    """

    # One byte stays free before the text: a decoder wants a bracket in front of the first event.
    _FRONT = 1

    def __init__(self, read: Callable[[memoryview], int | None], size: int = CHUNK, limit: int = 8 << 20) -> None:
        self._read, self.size, self.limit = read, size, max(limit, size)
        self.data = bytearray(size + self._FRONT)
        self.lo = self.hi = self._FRONT
        self.ended = False
        self._before = -self._FRONT

    @property
    def position(self) -> int:
        """Offset of ``lo`` in the text of the file."""
        return self._before + self.lo

    def fill(self, count: int) -> bool:
        """Have at least ``count`` bytes from ``lo`` on, or all there are; True if so many are there.

        Raises
        ------
        TooLong
            When ``count`` passes the limit.
        """
        if count > self.limit:
            raise TooLong
        while self.hi - self.lo < count and not self.ended:
            self._make_room(count)
            with memoryview(self.data) as view, view[self.hi :] as free:
                got = self._read(free) or 0
            self.hi += got
            self.ended = got == 0
        return self.hi - self.lo >= count

    def _make_room(self, count: int) -> None:
        held = self.hi - self.lo
        if self.lo + count <= len(self.data) and self.hi < len(self.data):
            return
        room = max(count, self.size) + self._FRONT
        target = self.data if room <= len(self.data) else bytearray(room)
        target[self._FRONT : self._FRONT + held] = self.data[self.lo : self.hi]
        self._before += self.lo - self._FRONT
        self.data, self.lo, self.hi = target, self._FRONT, self._FRONT + held

    def more(self) -> bool:
        """Have more text than now; False at the end of the file.

        Raises
        ------
        TooLong
            When the buffer is as large as it may be.
        """
        held = self.hi - self.lo
        if held >= self.limit:
            raise TooLong
        self.fill(min(max(2 * held, self.size), self.limit))
        return self.hi - self.lo > held
