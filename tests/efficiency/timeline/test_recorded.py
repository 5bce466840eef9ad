"""Steps, idle causes, copies and critical path of recorded traces of other machines: what must hold on any of them."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from densing.efficiency.timeline.critical import critical_path
from densing.efficiency.timeline.idle import idle_causes
from densing.efficiency.timeline.overlap import Window, partition, select, unions
from densing.efficiency.timeline.steps import step_partitions
from densing.efficiency.timeline.traffic import transfers
from densing.efficiency.traces.run import find_traces, read_rank
from tests.support import folders

FILES = [
    "hta_nccl_data/nccl_data.json.gz",
    "hta_trace_filter/sampled_rank-0.json.gz",
    "tracelens_mi300_resnet/resnet_act_checkpoint.json.gz",
    "param_dlrm_8rank/worker3_step_12.1694128201557.pt.trace.json.gz",
    "gloo/ddp_rank0.pt.trace.json.gz",
    "gloo/fsdp_rank1.pt.trace.json.gz",
]
# Whole public sets where they are, else what travels with the tests.
PATHS = {file: (folders.RECORDED if (folders.RECORDED / file).exists() else folders.TRACES) / file for file in FILES}
present = [file for file, path in PATHS.items() if path.exists()]


@cache
def read(file):
    return read_rank(next(iter(find_traces([PATHS[file]]))))


@pytest.mark.parametrize("file", present)
@pytest.mark.parametrize("name", ["steps", "all", "hta"])
def test_parts_sum_on_recorded_traces(file, name):
    rank = read(file)
    window = select(rank, name)
    merged = unions(window.work)
    whole = partition(window, merged)
    assert sum(idle_causes(rank, window, merged).causes.values()) == whole.idle_ns
    path = critical_path(rank, window)
    assert sum(path.totals.values()) == whole.window_ns == int((path.end - path.start).sum())
    for row in transfers(rank, window, merged).copies:
        assert 0 <= row.hidden_ns + row.exposed_ns <= row.busy_ns <= whole.memcpy_ns
    rows = step_partitions(rank, window, merged)
    # What HTA leaves out of its window is in no list per step either.
    assert len(rows) == len(rank.steps) - (name == "hta" and len(rank.steps) > 1 and not rank.on_host)
    for got in rows:
        alone = Window(name, got.start_ns, got.end_ns, window.work.within(got.start_ns, got.end_ns))
        assert got.partition == partition(alone)


@pytest.mark.parametrize("file", [file for file in present if not file.startswith("gloo")])
def test_idle_equals_the_reference(file):
    """golden/exact_reference.csv, idle_in_window_ns, made by two other programs."""
    with (folders.TRACES / "golden/exact_reference.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["file"] == Path(file).name.removesuffix(".gz")]
    assert rows
    rank = read(file)
    names = {"all": "all", "launched_before_last_step": "hta", "clipped_to_steps": "steps"}
    for row in rows:
        window = select(rank, names[row["window"]])
        assert idle_causes(rank, window, unions(window.work)).idle_ns == int(row["idle_in_window_ns"])


@pytest.mark.skipif(FILES[0] not in present, reason="the whole public sets are not here")
def test_a_host_that_launches_too_late_is_found():
    """nccl_data leaves its device idle for three quarters of the time, always for want of launches."""
    rank = read(FILES[0])
    window = select(rank, "steps")
    found = idle_causes(rank, window, unions(window.work))
    assert found.causes["host_bound"] > 0.9 * found.idle_ns
    assert critical_path(rank, window).bound_by == "host"
