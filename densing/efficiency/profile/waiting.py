"""How much of the communication was waiting for other ranks, by operation and process group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from densing.efficiency.timeline import OPS

if TYPE_CHECKING:
    from densing.efficiency.profile.matching import Matched

WAITING = ("matched_ns", "transfer_ns", "wait_ns", "exposed_wait_ns")


@dataclass(frozen=True)
class Waiting:
    """Waiting in the matched communications of one operation and group, all ranks together, told by durations.

    Attributes
    ----------
    lasted_ns, waited_ns : int
        Σ of the parts inside the window, and of what of them was waiting: a span waits first and transfers then.
    exposed_ns : int
        Exposed time that was waiting whatever was hidden: Σ max(0, exposed − transfer). A lower bound, exact where the
        hidden part comes first: wait that compute covers costs nothing.
    """

    lasted_ns: int
    waited_ns: int
    exposed_ns: int

    @property
    def share(self) -> float:
        """Σ wait / Σ inside the window, 0 to 1."""
        return self.waited_ns / self.lasted_ns

    def to_dict(self) -> dict[str, int]:
        """Return the sums as plain data: what was matched is transfer and wait, the parts inside the window.

        Examples
        --------
        >>> Waiting(lasted_ns=500, waited_ns=100, exposed_ns=60).to_dict()
        {'matched_ns': 500, 'transfer_ns': 400, 'wait_ns': 100, 'exposed_wait_ns': 60}
        """
        told = (self.lasted_ns, self.lasted_ns - self.waited_ns, self.waited_ns, self.exposed_ns)
        return dict(zip(WAITING, told, strict=True))


def waiting_of(matched: Matched) -> dict[tuple[str, str], Waiting]:
    """Sum the waiting of all ranks (no common clock needed), where anything was matched and took time.

    The keys are those of :func:`densing.efficiency.profile.summary.run_collectives`: operation and name of the group.

    Examples
    --------
    >>> from densing.efficiency.profile.matching import match_collectives
    >>> waiting_of(match_collectives({}))
    {}
    """
    total: dict[tuple[str, str], list[int]] = {}
    for collectives in matched.per_rank.values() if len(matched) else ():
        own, rows = matched.rows_of(collectives)
        inside, transfer = collectives.inside_ns[own], matched.transfer_ns[rows]
        # The wait ends where the transfer begins; what of either lies beyond the window counts nowhere.
        waited_until = np.minimum(collectives.end_ns[own] - transfer, collectives.window_end_ns)
        waited = np.maximum(waited_until - np.maximum(collectives.start_ns[own], collectives.window_start_ns), 0)
        transferred = inside - waited
        exposed = np.maximum(collectives.exposed_ns[own] - transferred, 0)
        table = np.stack((inside, waited, exposed))
        pairs = np.stack((collectives.op[own], collectives.group[own]), axis=1)
        kinds, which = np.unique(pairs, axis=0, return_inverse=True)
        for number, (op, group) in enumerate(kinds.tolist()):
            key = (OPS[op], collectives.groups[group].name)
            own_sums = table[:, which.reshape(-1) == number].sum(axis=1).tolist()
            total[key] = [a + b for a, b in zip(total.get(key, (0, 0, 0)), own_sums, strict=True)]
    return {key: Waiting(*sums) for key, sums in total.items() if sums[0]}
