"""The map of where techniques pay off."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from densing.cli.techniques import map_lines
from densing.core.errors import InputError
from densing.efficiency.simulation.cluster import Cluster, Device, Link
from densing.efficiency.simulation.workload import Split, Transformer, Workload
from densing.efficiency.systems.comparison import MARGIN, compare, regime, verdict

LINK = Link(0.0, 1e-9)
TOY = Cluster("toy", 8, 4, Device("toy", 1e13, 1e12), intra=LINK.faster(100), inter=LINK, host=LINK)
SMALL = Transformer("small", layers=2, hidden=256, heads=8, kv_heads=8, head_dim=32, ffn=1024, vocabulary=1000)
WORK = Workload(SMALL, batch=1, sequence=128, split=Split(dp=2, tp=4))
NAMES = ("ddp", "co2", "ladder")


def test_cells_are_the_comparisons_of_changed_clusters() -> None:
    found = regime(WORK, TOY, NAMES, bandwidths_gbps=(1, 100), batches=(1, 8), knobs={"co2": {"tau": 4}})
    assert (found.link, found.baseline, len(found.cells)) == ("inter", "ddp", 12)
    cell = next(cell for cell in found.cells if (cell.bandwidth_gbps, cell.batch, cell.technique) == (100, 8, "co2"))
    link = replace(LINK, beta_s_per_byte=8e-9 / 100)
    rows = compare(replace(WORK, batch=8), TOY.change(inter=link), NAMES, knobs={"co2": {"tau": 4}}).rows
    assert (cell.step_s, cell.speedup) == (rows[1].step_s, rows[1].speedup)


def test_slow_links_make_co2_win_and_quick_ones_make_it_tie() -> None:
    found = regime(WORK, TOY, NAMES, bandwidths_gbps=(0.1, 1e6), batches=(1,))
    slow, quick = (cell for cell in found.cells if cell.technique == "co2")
    assert (slow.verdict, quick.verdict) == ("wins", "ties")
    assert slow.speedup > 5


def test_the_grid_is_around_the_clusters_own_link() -> None:
    found = regime(WORK, TOY, ("ddp",), batches=(1,))
    assert [cell.bandwidth_gbps for cell in found.cells] == [0.5, 2, 8, 32, 128]
    alone = regime(replace(WORK, split=Split(tp=4)), TOY.change(n=4), ("tensor-parallel",), batches=(1,))
    assert (alone.link, alone.cells[2].bandwidth_gbps) == ("intra", 800)


def test_beyond_as_many_replicas_as_their_packets_are_small_gathering_loses_to_a_ring() -> None:
    """2 over the packet's share: 28 replicas at 4 % of the entries in float32, on a device that computes in no time."""
    quick = Cluster("toy", 8, 1, Device("toy", 1e15, 1e15), intra=LINK, inter=LINK, host=LINK)
    alone = replace(WORK, split=Split(dp=2), dtype_bytes=4)
    found = regime(
        alone,
        quick,
        ("ddp", "topk"),
        bandwidths_gbps=(1,),
        replicas=(2, 8, 20, 36, 64),
        knobs={"topk": {"share": 0.04}},
    )
    speedups = {cell.replicas: cell.speedup for cell in found.cells if cell.technique == "topk"}
    assert found.across == "replicas"
    assert speedups[2] > speedups[8] > speedups[20] > 1 > speedups[36] > speedups[64]
    assert speedups[2] == pytest.approx(14, rel=0.05)
    assert any("replicas 64" in line for line in map_lines(found))
    with pytest.raises(InputError, match="speed per device"):
        regime(alone, quick.change(speed=(1.0,) * 8), ("ddp",), replicas=(2, 4))


def test_progress_counts_up_to_all() -> None:
    seen: list[tuple[int, int]] = []
    regime(WORK, TOY, ("ddp",), bandwidths_gbps=(1, 2), batches=(1, 2), progress=lambda *each: seen.append(each))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_verdicts_leave_a_margin() -> None:
    assert [verdict(1 + MARGIN * each) for each in (-1.01, -0.99, 0.99, 1.01)] == ["loses", "ties", "ties", "wins"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"link": "wide"}, "no link 'wide'; it has intra, inter"),
        ({"bandwidths_gbps": (0.0,)}, "positive"),
        ({"bandwidths_gbps": (float("nan"),)}, "positive"),
        ({"batches": (-1,)}, "positive"),
        ({"batches": ()}, "no batch"),
    ],
)
def test_bad_grids_are_refused(more: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        regime(WORK, TOY, NAMES, **more)  # type: ignore[arg-type]


def test_a_free_link_has_no_grid_of_its_own() -> None:
    with pytest.raises(InputError, match="give the map's bandwidths"):
        regime(WORK, TOY.change(inter=Link(0.0, 0.0)), NAMES)


def test_the_map_in_text_marks_what_does_not_apply() -> None:
    found = regime(replace(WORK, split=Split(dp=8)), TOY, NAMES, bandwidths_gbps=(0.1, 1e6), batches=(1,))
    lines = "\n".join(map_lines(found))
    assert "speed-up over ddp by bandwidth of the inter link" in lines
    assert lines.index("co2:") < lines.index("ladder:")
    assert lines.count("–") == 2 + 1  # in cells, and in the legend
    assert {cell.verdict for cell in found.cells if cell.technique == "ladder"} == {"does not apply"}
