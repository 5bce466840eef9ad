"""The grid of a run's ranks, read off its groups: planted ones with three dimensions, and runs that have none."""

from __future__ import annotations

import pytest

from densing.efficiency.profile.layout import find_layout, kind_of
from densing.efficiency.profile.run import RunProfile, profile_run
from densing.efficiency.timeline.timeline import Comm, Kind, RankTimeline, Spans, Step, Timeline
from tests.support.planted_runs import Planted

SIZES = {"tp": 2, "dp": 2, "pp": 3}
"""Of a grid whose ranks are numbered along tp first, then dp, then pp."""
STRIDES = {"tp": 1, "dp": 2, "pp": 4}
OPS = {"tp": "all_reduce", "dp": "reduce_scatter", "pp": "send_recv"}
LABELS = {
    "torchtitan": {"tp": "mesh_tp", "dp": "mesh_dp_shard", "pp": "mesh_pp"},
    "Megatron-LM": {"tp": "TENSOR_MODEL_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP",
                    "pp": "PIPELINE_MODEL_PARALLEL_GROUP"},
    "none": dict.fromkeys(SIZES, ""),
}  # fmt: skip


def line(rank: int, kind: str) -> tuple[int, ...]:
    """The ranks of a rank's group of a dimension."""
    place = rank // STRIDES[kind] % SIZES[kind]
    return tuple(rank + STRIDES[kind] * (other - place) for other in range(SIZES[kind]))


def grid(labels: dict[str, str], kinds: tuple[str, ...] = ("tp", "dp", "pp"), world: bool = True) -> RunProfile:
    """Twelve ranks, two steps of 100 ns; tp is exposed for 20 of them, dp for 5, pp for 1."""
    ranks = []
    for rank in range(12):
        work = []
        for step in (0, 1):
            at = 100 * step
            for kind, start, took in (("tp", 10, 20), ("dp", 50, 5), ("pp", 60, 1)):
                members = line(rank, kind)
                # Every process numbers its groups by itself.
                comm = Comm(OPS[kind], f"{STRIDES[kind]}", labels[kind], len(members), members, 8, 8, "float", step)
                if kind in kinds:
                    work.append({"start": at + start, "end": at + start + took, "kind": Kind.COMM, "name": "nccl",
                                 "comm": comm})  # fmt: skip
            everyone = Comm("all_reduce", "0", "default_pg", 12, tuple(range(12)), 1, 1, "float", step)
            if world:
                work.append({"start": at + 90, "end": at + 91, "kind": Kind.COMM, "name": "nccl", "comm": everyone})
            work.append({"start": at + 31, "end": at + 50, "kind": Kind.COMPUTE, "name": "gemm"})
        steps = (Step(0, 0, 100), Step(1, 100, 200))
        work.sort(key=lambda row: int(row["start"]))  # type: ignore[call-overload]
        ranks.append(RankTimeline(rank, Spans.build(work), Spans.empty(), steps))
    return profile_run(Timeline(tuple(ranks)))


@pytest.mark.parametrize("framework", LABELS)
def test_a_planted_grid_is_found_by_names_and_without_them(framework: str) -> None:
    run = grid(LABELS[framework])
    found = {one.kind: one for one in run.layout}
    assert list(found) == ["tp", "dp", "pp", ""] or list(found) == ["tp", "dp", "", "pp"]
    for kind in SIZES:
        one = found[kind]
        assert (one.size, one.stride, one.groups) == (SIZES[kind], STRIDES[kind], 12 // SIZES[kind])
        assert one.ops == (OPS[kind],) and one.count == 24
        assert one.known_by == ("members" if framework == "none" else "name")
    assert [found[kind].exposed_ns for kind in SIZES] == [480, 120, 24]
    # What all ranks share, a loss, is no parallelism of its own.
    assert found[""].size == 12 and found[""].known_by == ""
    text = "\n".join(run.layout_listing().lines())
    assert "74.1 %" in text and ("members" in text) == (framework == "none")


def test_what_neither_names_nor_traffic_tell_is_left_open() -> None:
    bare = LABELS["none"]
    [one] = grid(bare, ("tp",), world=False).layout
    assert (one.kind, one.size) == ("dp or tp", 2)
    both = {row.kind for row in grid({**bare, "tp": "mesh_tp"}, ("tp", "dp"), world=False).layout}
    assert both == {"tp", "dp"}
    plain = Planted(ranks=4).profile()
    assert [(row.kind, row.size, row.known_by) for row in plain.layout] == [("dp", 4, "members")]
    # A single dimension is no grid to be shown.
    assert not plain.layout_listing().rows and find_layout([]) == ()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mesh_dp_replicate", "dp"),
        ("mesh_cp", "cp"),
        ("mesh_ep", "ep"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("ep_size_4", "ep"),
        ("data_parallel_group", "dp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "dp+tp"),
        ("EMBEDDING_GROUP", ""),
        ("undefined", ""),
        ("7", ""),
    ],
)
def test_names_of_groups_as_frameworks_write_them(name: str, kind: str) -> None:
    assert kind_of(name) == kind
