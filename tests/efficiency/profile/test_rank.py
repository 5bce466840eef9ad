"""One rank: its profile as plain data, and what its trace must be told of."""

from __future__ import annotations

import pytest

from densing.efficiency.profile.figures import per_step
from densing.efficiency.profile.rank import ProfileOptions, RankProfile, profile_timeline
from densing.efficiency.profile.run import merge_run
from densing.efficiency.timeline.timeline import Kind, Lane, Origin, RankTimeline, Spans
from tests.support.straggler_runs import LAUNCH, profiles, timeline


def test_a_profile_survives_its_plain_form() -> None:
    one = profiles()[1]
    assert RankProfile.from_dict(one.to_dict()).to_dict() == one.to_dict()


@pytest.mark.parametrize(
    ("comm", "kind", "on_host", "told"),
    [
        ("GPU 1", Kind.COMM, False, [["GPU 0", "GPU 1"]]),
        ("GPU 1", Kind.MEMSET, False, [["GPU 0", "GPU 1"]]),
        ("GPU 0", Kind.COMM, False, []),
        ("GPU 1", Kind.SYNC, False, []),
        ("GPU 1", Kind.UNKNOWN, False, []),
        ("worker 2", Kind.COMM, True, []),
    ],
)
def test_work_on_several_devices_in_one_trace_is_noted(comm: str, kind: Kind, on_host: bool, told: list[str]) -> None:
    first = {"start": 0, "end": 50, "kind": Kind.COMPUTE, "name": "gemm", "lane": Lane("GPU 0", "7")}
    second = {"start": 20, "end": 80, "kind": kind, "name": "x", "lane": Lane(comm, "20")}
    host = Spans.build([{**LAUNCH, "start": 0, "end": 1}])
    rank = RankTimeline(0, Spans.build([first, second]), host, origin=Origin("both.json"), on_host=on_host)
    notes = [note for note in profile_timeline(rank).notes if note.code == "several-devices"]
    assert [note.details["devices"] for note in notes] == told
    assert all(note.severity == "warning" and "both.json: 2 devices" in note.message for note in notes)


def test_the_window_of_hta_counts_one_step_less() -> None:
    whole, cut = (merge_run([profile_timeline(timeline(0), ProfileOptions(name))]) for name in ("all", "hta"))
    assert [len(run.ranks[0].steps) for run in (whole, cut)] == [4, 3]
    assert all(step.partition.compute_ns == 400_000 for step in cut.ranks[0].steps)
    assert [run.ranks[0].partition.compute_ns / per_step(run.ranks) for run in (whole, cut)] == [400_000, 400_000]
