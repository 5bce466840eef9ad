"""Scaling efficiency, by hand; and the comparisons that are refused."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.timeline.scaling_efficiency import Run, Scaling, scaling

SAME = "median step time, window steps"


def test_strong_weak_and_throughput_by_hand():
    strong = scaling([Run(8, 2.0, SAME, 64), Run(2, 6.0, SAME, 64)], "strong")
    # 2 devices in 6 s, 8 devices in 2 s: 12 device seconds against 16.
    assert [(row.devices, row.speedup, row.efficiency) for row in strong.rows] == [(2, 1, 1), (8, 3, 0.75)]
    weak = scaling([Run(1, 3.0, SAME, 10), Run(4, 4.0, SAME, 40)], "weak")
    assert weak.rows[1].efficiency == 0.75 and weak.rows[1].throughput == 10
    through = scaling([Run(1, 3.0, SAME, 30), Run(4, 4.0, SAME, 120)], "throughput")
    assert through.rows[1].speedup == 3 and through.rows[1].efficiency == 0.75
    assert Scaling.from_dict(json.loads(json.dumps(through.to_dict()))) == through


def test_the_three_agree_where_they_must():
    for devices in (2, 3, 8):
        base, other = Run(1, 5.0, SAME, 16), Run(devices, 5.0 / devices**0.9, SAME, 16)
        strong = scaling([base, other], "strong").rows[1].efficiency
        assert scaling([base, other], "throughput").rows[1].efficiency == pytest.approx(strong)
        grown = replace(other, work=16.0 * devices)
        weak = scaling([base, grown], "weak").rows[1].efficiency
        assert scaling([base, grown], "throughput").rows[1].efficiency == pytest.approx(weak)


BASE = Run(1, 5.0, SAME, 16)


@pytest.mark.parametrize(
    ("other", "kind", "message"),
    [
        (Run(2, 3.0, "mean step time", 16), "strong", "different definitions"),
        (Run(1, 3.0, SAME, 16), "strong", "two sizes"),
        (Run(2, 3.0, SAME, 32), "strong", "needs constant work per step"),
        (Run(2, 3.0, SAME, 16), "weak", "needs constant work per device"),
        (Run(2, 3.0, SAME), "throughput", "work per step of every run"),
        (Run(2, 0.0, SAME), "strong", "not a positive"),
        (Run(2, float("nan"), SAME), "strong", "not a positive"),
        (Run(0, 1.0, SAME), "strong", "at least one"),
        (Run(2, 1.0, SAME, -1.0), "strong", "work per step -1.0"),
    ],
)
def test_comparisons_that_are_refused(other, kind, message):
    with pytest.raises(InputError, match=message):
        scaling([BASE, other], kind)


def test_a_size_twice_and_a_kind_that_is_not():
    with pytest.raises(InputError, match="two runs on 2 devices"):
        scaling([BASE, Run(2, 3.0, SAME, 16), Run(2, 3.1, SAME, 16)], "strong")
    with pytest.raises(UnknownNameError, match="weak"):
        scaling([BASE, Run(2, 3.0, SAME, 16)], "week")
