"""What a collective asks for: which rank begins with which chunk, and who must end with it."""

from __future__ import annotations

from densing.core import Record, UnknownNameError

OPS = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter", "send_recv")
GATHERING = ("all_gather", "all_to_all", "broadcast", "send_recv")
"""Collectives that only copy; the others are these turned round in time."""


class Demand(Record, frozen=True):
    """Chunks of a copying collective: chunk ``c`` is at ``source[c]`` and must come to ``wanted[c]``.

    Parameters
    ----------
    op : str
    n : int
    source : tuple of int
    wanted : tuple of tuple of int
        Without the source.
    part : tuple of int
        Which of its source's (or, in all-to-all, its pair's) chunks it is.
    """

    op: str
    n: int
    source: tuple[int, ...]
    wanted: tuple[tuple[int, ...], ...]
    part: tuple[int, ...]

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.source)

    def image(self, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return what each chunk becomes when ranks are renamed; None where the collective then is another one."""
        number = {self.key(c, tuple(range(self.n))): c for c in range(self.chunks)}
        found = tuple(number.get(self.key(c, ranks), -1) for c in range(self.chunks))
        return None if -1 in found else found

    def key(self, chunk: int, ranks: tuple[int, ...]) -> tuple[int, tuple[int, ...], int]:
        """Return what tells a chunk from the others, in renamed ranks."""
        wanted = tuple(sorted(ranks[rank] for rank in self.wanted[chunk]))
        return ranks[self.source[chunk]], wanted, self.part[chunk]


def demand(op: str, n: int, parts: int = 1) -> Demand:
    """Return the chunks of a copying collective over ``n`` ranks, each input cut into ``parts``.

    ``broadcast`` begins at rank 0, ``send_recv`` goes from rank 0 to rank 1.

    Raises
    ------
    UnknownNameError

    Examples
    --------
    >>> demand("all_gather", 3).wanted
    ((1, 2), (0, 2), (0, 1))
    >>> demand("all_to_all", 2).wanted
    ((1,), (0,))
    """
    ranks = range(n)
    others = {a: tuple(b for b in ranks if b != a) for a in ranks}
    rows: list[tuple[int, tuple[int, ...]]] = []
    if op == "all_gather":
        rows = [(a, others[a]) for a in ranks]
    elif op == "all_to_all":
        rows = [(a, (b,)) for a in ranks for b in others[a]]
    elif op == "broadcast":
        rows = [(0, others[0])]
    elif op == "send_recv":
        rows = [(0, (1,))]
    else:
        raise UnknownNameError("collective", op, GATHERING)
    cut = [(a, wanted, part) for a, wanted in rows for part in range(parts)]
    return Demand(op, n, tuple(r[0] for r in cut), tuple(r[1] for r in cut), tuple(r[2] for r in cut))
