"""Which ranks form which groups, and which of them are simulated.

Ranks are numbered tensor-parallel first, then data-parallel, then by pipeline stage, so that the groups that exchange
most are closest. Equal ranks are simulated as one per stage; where a cluster's ranks differ in speed, all are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from densing.core import InputError
from densing.efficiency.simulation import Cluster, Split, span_of

SPANS = ("none", "intra", "inter", "wide")


class Group(NamedTuple):
    """Ranks that communicate.

    Attributes
    ----------
    positions : tuple of int
        Those that are simulated, by their place among the stage's simulated ranks.
    simulated : tuple of int
        The same by simulated rank.
    real : tuple of int
        All members, by their rank in the cluster.
    """

    positions: tuple[int, ...]
    simulated: tuple[int, ...]
    real: tuple[int, ...]


class Layout:
    """Groups of a split on a cluster.

    Parameters
    ----------
    split : Split
    cluster : Cluster
    inner : int
        Data-parallel ranks in a group that agrees every step, where a technique has such groups.

    Raises
    ------
    InputError
        When the split needs more devices than there are, or is none.

    Examples
    --------
    >>> from densing.efficiency.simulation.cluster import Device, Link
    >>> link = Link(0, 1e-9)
    >>> cluster = Cluster("toy", 8, 4, Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> layout = Layout(Split(dp=4, tp=2), cluster)
    >>> layout.real("tp", 0), layout.real("dp", 0)
    ([(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 2, 4, 6), (1, 3, 5, 7)])
    >>> layout.concurrent("dp")
    2
    """

    def __init__(self, split: Split, cluster: Cluster, inner: int = 1) -> None:
        _check(split, cluster, inner)
        self.split, self.cluster, self.inner = split, cluster, inner
        self.every = bool(cluster.speed)

    @property
    def simulated(self) -> int:
        """Ranks simulated."""
        return self.split.ranks if self.every else self.split.pp

    @property
    def stands_for(self) -> dict[int, int]:
        """Real ranks that a simulated rank represents."""
        return {} if self.every else dict.fromkeys(range(self.split.pp), self.split.dp * self.split.tp)

    def ranks(self, stage: int) -> tuple[int, ...]:
        """Simulated ranks of a stage."""
        width = self.split.dp * self.split.tp
        return tuple(range(stage * width, (stage + 1) * width)) if self.every else (stage,)

    def groups(self, kind: str, stage: int) -> list[Group]:
        """Return the groups of a kind that are simulated; a single one stands for all where ranks are equal."""
        real = self.real(kind, stage)
        if not self.every:
            worst = max(real, key=self._spread)
            return [Group((0,), (stage,), worst)]
        first = stage * self.split.dp * self.split.tp
        return [Group(tuple(rank - first for rank in ranks), ranks, ranks) for ranks in real]

    def real(self, kind: str, stage: int) -> list[tuple[int, ...]]:
        """Return the members of every group of a kind in a stage: ``tp``, ``dp``, ``inner``, ``outer``."""
        dp, tp, inner = self.split.dp, self.split.tp, self.inner
        if kind == "tp":
            return [tuple(self._rank(d, t, stage) for t in range(tp)) for d in range(dp)]
        starts = {"dp": range(1), "inner": range(0, dp, inner), "outer": range(1)}[kind]
        width, stride = {"dp": (dp, 1), "inner": (inner, 1), "outer": (dp, inner)}[kind]
        return [
            tuple(self._rank(d, t, stage) for d in range(start, start + width, stride))
            for t in range(tp)
            for start in starts
        ]

    def neighbours(self, stage: int, other: int) -> list[tuple[int, int]]:
        """Return who hands activations to whom, from a stage to another: real ranks, one pair per simulated rank."""
        dp, tp = self.split.dp, self.split.tp
        pairs = [(self._rank(d, t, stage), self._rank(d, t, other)) for d in range(dp) for t in range(tp)]
        return pairs if self.every else [max(pairs, key=self._spread)]

    def concurrent(self, kind: str) -> int:
        """Return how many groups of a kind a node has at most: they communicate at the same time."""
        if kind == "p2p":
            return min(self.cluster.per_node, self.split.dp * self.split.tp)
        return self._concurrent[kind]

    def level(self, kind: str) -> str:
        """Return the outermost link that groups of a kind use: ``none``, ``intra``, ``inter``, ``wide``."""
        return max((span_of(self.cluster, ranks) for ranks in self.real(kind, 0)), key=SPANS.index)

    def exclusive(self, kind: str) -> bool:
        """Return whether tensor-parallel and data-parallel groups use the same link: then it serves one at a time."""
        others = ("dp", "inner", "outer") if kind == "tp" else ("tp",)
        return self.level(kind) != "none" and any(self.level(other) == self.level(kind) for other in others)

    @cached_property
    def _concurrent(self) -> dict[str, int]:
        result: dict[str, int] = {}
        for kind in ("tp", "dp", "inner", "outer"):
            count = Counter[int]()
            for stage in range(self.split.pp):
                for ranks in self.real(kind, stage):
                    count.update({rank // self.cluster.per_node for rank in ranks})
            result[kind] = max(count.values())
        return result

    def _rank(self, d: int, t: int, stage: int) -> int:
        return t + self.split.tp * (d + self.split.dp * stage)

    def _spread(self, ranks: Sequence[int]) -> tuple[int, int]:
        return SPANS.index(span_of(self.cluster, ranks)), len({rank // self.cluster.per_node for rank in ranks})


def _check(split: Split, cluster: Cluster, inner: int) -> None:
    for name in ("dp", "tp", "pp"):
        if getattr(split, name) < 1:
            raise InputError(f"split: {name} = {getattr(split, name)} is no number of ranks; give 1 or more")
    if split.ranks > cluster.n:
        raise InputError(
            f"dp {split.dp} x tp {split.tp} x pp {split.pp} needs {split.ranks} devices and cluster {cluster.name} has "
            f"{cluster.n}; split less, or give it more devices"
        )
    if cluster.speed and not len(cluster.speed) == cluster.n == split.ranks:
        raise InputError(
            f"cluster {cluster.name}: {len(cluster.speed)} speeds for {cluster.n} devices and a split of {split.ranks} "
            "ranks; give one speed per rank"
        )
    if split.dp % inner:
        raise InputError(f"inner = {inner} does not divide the {split.dp} data-parallel ranks; choose a divisor")
