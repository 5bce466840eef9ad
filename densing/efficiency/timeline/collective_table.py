"""The table of one rank's communications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from densing.efficiency.timeline.spans import Int

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send",
       "recv", "send_recv", "barrier", "p2p_copy", "")  # fmt: skip


class Group(NamedTuple):
    """A process group: its name and description as recorded, its size (-1 unknown) and members (empty if unknown)."""

    name: str
    label: str = ""
    size: int = -1
    ranks: tuple[int, ...] = ()


class Collectives(msgspec.Struct, frozen=True, eq=False):
    """Communications of one rank inside a window, one row each, in order of start.

    Attributes
    ----------
    rank : int
    window : str
        Name of the window.
    window_start_ns, window_end_ns : int
    groups : tuple of Group
    names, lanes, dtypes : tuple of str
    op : int64 (n,)
        Index into :data:`OPS`.
    name, lane, group, dtype : int64 (n,)
        Index into ``names``, ``lanes``, ``groups``, ``dtypes``.
    seq : int64 (n,)
        Number within the group as recorded; -1 unknown.
    step : int64 (n,)
        Number of the step in which it was launched (or, without a launch record, in which it starts); -1 none.
    order : int64 (n,)
        n-th of its group, operation and step on this rank, in order of launch. Groups the trace does not name are
        told apart by stream, numbered by first use.
    start_ns, end_ns : int64 (n,)
        Whole span, also where the window cuts it.
    inside_ns, hidden_ns, exposed_ns : int64 (n,)
        Part inside the window; of that, what compute covers and what it does not. Communications that run at the same
        time each count their own part, so sums over rows may exceed the partition's.
    union_ns, union_hidden_ns : int64 (n,)
        Of ``inside_ns`` what no earlier one of its group and operation covers, and of that what compute covers: sums
        over the rows of a group and operation are lengths of unions.
    in_elems, out_elems, bytes : int64 (n,)
        Elements put in and got out; S (see :mod:`densing.efficiency.timeline.collective_bytes`); -1 unknown.
    src, dst : int64 (n,)
        Global ranks of a point-to-point transfer; -1 unknown.
    """

    rank: int
    window: str
    window_start_ns: int
    window_end_ns: int
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    lanes: tuple[str, ...]
    dtypes: tuple[str, ...]
    op: Int
    name: Int
    lane: Int
    group: Int
    dtype: Int
    seq: Int
    step: Int
    order: Int
    start_ns: Int
    end_ns: Int
    inside_ns: Int
    hidden_ns: Int
    exposed_ns: Int
    union_ns: Int
    union_hidden_ns: Int
    in_elems: Int
    out_elems: Int
    bytes: Int
    src: Int
    dst: Int

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int:
        """Length of the whole spans."""
        return self.end_ns - self.start_ns

    def ops(self) -> list[str]:
        """Return the operation of each row."""
        return [OPS[code] for code in self.op]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: tables of names, and ``columns`` as equally long lists."""
        return {
            "rank": self.rank,
            "window": self.window,
            "window_start_ns": self.window_start_ns,
            "window_end_ns": self.window_end_ns,
            "groups": [{**group._asdict(), "ranks": list(group.ranks)} for group in self.groups],
            "names": list(self.names),
            "lanes": list(self.lanes),
            "dtypes": list(self.dtypes),
            "columns": {key: getattr(self, key).tolist() for key in COLUMNS},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Collectives:
        """Rebuild what :meth:`to_dict` wrote."""
        given: dict[str, Any] = {key: data[key] for key in ("rank", "window", "window_start_ns", "window_end_ns")}
        given |= {key: tuple(data[key]) for key in ("names", "lanes", "dtypes")}
        given["groups"] = tuple(Group(**{**group, "ranks": tuple(group["ranks"])}) for group in data["groups"])
        given |= {key: np.asarray(data["columns"][key], np.int64) for key in COLUMNS}
        return cls(**given)


COLUMNS = tuple(name for name, kind in Collectives.__annotations__.items() if kind == "Int")
