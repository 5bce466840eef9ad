"""Which share of the communication was waiting for other ranks, by operation and process group."""

from __future__ import annotations

import numpy as np

from densing.profile.matching import Matched
from densing.timeline.collectives import OPS


def wait_shares(matched: Matched) -> dict[tuple[str, str], float]:
    """Return Σ wait / Σ duration over ranks, told by durations (no common clock needed), where anything was matched.

    The keys are those of :func:`densing.profile.summary.run_collectives`: operation and name of the group.

    Examples
    --------
    >>> from densing.profile.matching import match_collectives
    >>> wait_shares(match_collectives({}))
    {}
    """
    waited: dict[tuple[str, str], int] = {}
    lasted: dict[tuple[str, str], int] = {}
    for collectives in matched.per_rank.values() if len(matched) else ():
        own, rows = matched.rows_of(collectives)
        took = collectives.duration_ns[own]
        pairs = np.stack((collectives.op[own], collectives.group[own]), axis=1)
        kinds, which = np.unique(pairs, axis=0, return_inverse=True)
        for number, (op, group) in enumerate(kinds.tolist()):
            chosen = which.reshape(-1) == number
            key = (OPS[op], collectives.groups[group].name)
            lasted[key] = lasted.get(key, 0) + int(took[chosen].sum())
            waited[key] = waited.get(key, 0) + int((took - matched.transfer_ns[rows])[chosen].sum())
    return {key: waited[key] / total for key, total in lasted.items() if total}
