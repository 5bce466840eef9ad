"""Tables in the host's memory: requests against the kernel's loop written out, plans against formulas, claims."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.core import InputError, UnavailableError
from densing.efficiency.parallel import RunSpec
from densing.efficiency.simulation import Cluster, Device, Gather, Link, load_cluster, load_gather, load_workload
from densing.efficiency.systems.claims import MUTATIONS, PHYSICS
from densing.efficiency.systems.comparison import compare
from densing.efficiency.systems.host_tables.claims import CLAIMS, calibrated
from densing.efficiency.systems.host_tables.requests import requests_per_row
from densing.efficiency.systems.plan import SteadyStep, measure
from densing.efficiency.systems.prox_csl.technique import Convex
from densing.efficiency.systems.registry import get_technique
from densing.efficiency.systems.validation import notices, verdict

NAMES = ("device-table", "host-gather", "pinned-gather", "zero-copy")
STEP = Gather("toy", table_rows=10_000, width=602, rows=1000, train_s=0.02, sample_s=0.003, parameters=50)


def cluster(beta: float = 1e-9, alpha: float = 0.0) -> Cluster:
    link = Link(alpha, beta)
    return Cluster("toy", 1, 1, Device("toy", 1e12, 1e12, 24e9), intra=link, inter=link, host=link)


def measured(name: str, step: Gather = STEP, where: Cluster | None = None, **knobs: Any) -> SteadyStep:
    where = where or cluster()
    return measure(get_technique(name).plan(step, where, **knobs), where)  # type: ignore[arg-type]


def kernel_requests(width: int, element: int, align: bool, rows: int) -> float:
    """DGL's loop, thread by thread: a block of 256 threads strides over the columns of a row, 32 threads are a warp."""
    total = 0
    for row in range(rows):
        start = row * width * element
        shift = (start % 128) // element if align and width * element >= 128 else 0
        touched = set()
        for thread in range(256):
            column = thread - shift
            turn = 0
            while column < width:
                if column >= 0:
                    touched.add(((start + column * element) // 128, thread // 32, turn))
                column += 256
                turn += 1
        total += len(touched)
    return total / rows


@given(st.integers(1, 700), st.sampled_from([4, 8]), st.booleans())
def test_requests_are_those_of_the_kernels_loop(width: int, element: int, align: bool) -> None:
    # Starts repeat after at most 32 rows of four bytes.
    assert requests_per_row(width, element=element, align=align) == kernel_requests(width, element, align, 32)


@pytest.mark.parametrize(
    ("width", "plain", "aligned"), [(602, 36.625, 19.75), (100, 6.625, 4), (128, 4, 4), (200, 11.5, 7)]
)
def test_requests_of_the_papers_widths(width: int, plain: float, aligned: float) -> None:
    assert (requests_per_row(width, align=False), requests_per_row(width)) == (plain, aligned)


@given(st.integers(1, 5000), st.sampled_from([1, 2, 4, 8]))
def test_alignment_never_costs_a_line(width: int, element: int) -> None:
    plain, aligned = (requests_per_row(width, element=element, align=each) for each in (False, True))
    assert width * element / 128 <= aligned
    if element >= 4:
        # A warp reads whole lines: aligned, a row costs the lines it touches and no more.
        assert aligned <= plain and aligned <= width * element / 128 + 1
    if width * element % 128 == 0 and element >= 4:
        assert aligned == plain == width * element / 128


@pytest.mark.parametrize(("width", "element"), [(0, 4), (-3, 4), (8, 3)])
def test_no_row_and_no_number_are_refused(width: int, element: int) -> None:
    with pytest.raises(InputError, match="give"):
        requests_per_row(width, element=element)


def test_one_after_the_other_a_step_is_a_sum_and_overlapped_its_longest_part() -> None:
    wire, gather = 1000 * 2408e-9, 2 * 1000 * 2408 / 35e9
    plain = measured("pinned-gather", overlap=False)
    assert plain.step_s == pytest.approx(STEP.sample_s + gather + wire + STEP.train_s, abs=1e-8)
    assert plain.exposed_comm_s == pytest.approx(wire, abs=1e-8) and plain.overlap_ratio == 0
    assert measured("pinned-gather").step_s == pytest.approx(STEP.train_s, abs=1e-8)
    slow = cluster(beta=1e-7)
    assert measured("pinned-gather", where=slow).step_s == pytest.approx(100 * wire, abs=1e-8)
    assert measured("device-table").step_s == pytest.approx(STEP.train_s, abs=1e-8)
    alone = measured("device-table", overlap=False)
    assert alone.step_s == pytest.approx(STEP.sample_s + STEP.train_s, abs=1e-8) and alone.bytes == 0
    assert measured("pinned-gather").bytes_per_link == {"host": STEP.bytes}


def test_a_copy_from_ordinary_memory_holds_the_hosts_thread() -> None:
    where, host = cluster(beta=1e-7), 1.0
    gather, wire = 2 * STEP.bytes / 1e9, 1e-7 * STEP.bytes
    assert measured("host-gather", where=where, host_gbs=host).step_s == pytest.approx(
        STEP.sample_s + gather + wire, rel=0.02
    )
    # A wire faster than the host waits for its staging.
    quick = measured("host-gather", where=cluster(beta=1e-12), host_gbs=host, overlap=False).step_s
    assert quick == pytest.approx(STEP.sample_s + 2 * gather + STEP.train_s, abs=1e-8)


@pytest.mark.parametrize(("align", "requests"), [(True, 19.75), (False, 36.625)])
def test_reads_are_bound_by_bandwidth_or_by_their_round_trips(align: bool, requests: float) -> None:
    quick = replace(STEP, train_s=0.0, sample_s=0.0)
    options: dict[str, Any] = {"align": align, "overlap": False, "header_bytes": 12}
    wide = measured("zero-copy", quick, **options)
    assert wide.step_s == pytest.approx(1e-9 * 1000 * (2408 + 12 * requests), abs=1e-8)
    late = measured("zero-copy", quick, **options, outstanding=4, round_trip_us=5.0)
    assert late.step_s == pytest.approx(1000 * requests * 5e-6 / 4, abs=1e-8)
    # As many as PCIe 3 has under way, and PCIe 4.
    for beta, outstanding in ((8e-11, 256), (4e-11, 768)):
        found = measured("zero-copy", quick, cluster(beta), **options, round_trip_us=1e3)
        assert found.step_s == pytest.approx(1000 * requests * 1e-3 / outstanding, abs=1e-8)


def test_reads_take_processors_only_where_they_overlap() -> None:
    assert measured("zero-copy", sm_share=0.2).step_s == pytest.approx(STEP.train_s / 0.8, abs=1e-8)
    parts = STEP.sample_s + STEP.train_s + 1e-9 * 1000 * (2408 + 16 * 19.75)
    assert measured("zero-copy", sm_share=0.2, overlap=False).step_s == pytest.approx(parts, abs=1e-8)


@given(st.floats(0.0, 0.05), st.floats(0.0, 0.05), st.floats(1e-4, 0.05))
def test_a_pipeline_is_never_shorter_than_its_longest_part_nor_longer_than_their_sum(
    sample: float, train: float, wire: float
) -> None:
    step = replace(STEP, sample_s=sample, train_s=train)
    found = measured("pinned-gather", step, cluster(beta=wire / STEP.bytes)).step_s
    gather = 2 * STEP.bytes / 35e9
    assert max(sample + gather, wire, train) - 1e-7 <= found <= sample + gather + wire + train + 1e-7


def test_parameters_on_the_device_stand_beside_all_of_them() -> None:
    found = compare(load_gather("sage-papers100m"), load_cluster("rtx3090-pcie4"), NAMES)
    rows = {row.technique: row for row in found.rows}
    assert {rows[name].parameters for name in NAMES} == {14_215_684_156}
    assert rows["zero-copy"].parameters_on_device == 9_788
    assert rows["device-table"].parameters_on_device == 14_215_684_156
    assert rows["device-table"].status == "does not fit" and "57.1 GB of 24 GB" in rows["device-table"].reason
    stages = next(note for note in found.notes if note.code == "stages" and note.details["technique"] == "zero-copy")
    assert "longest: training; requests per row 4, aligned 4" in stages.message


@pytest.mark.parametrize("name", NAMES)
def test_other_kinds_of_workloads_are_refused_in_a_sentence(name: str) -> None:
    technique = get_technique(name)
    for other, words in ((load_workload("llama-8b"), "a transformer"), (Convex(1, 1, 1, 1), "of the kind Convex")):
        with pytest.raises(InputError, match=f"{name} fetches rows.*this workload is {words}; it takes a Gather"):
            technique.plan(other, cluster())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="width: 0 is out of range"):
        technique.plan(replace(STEP, width=0), cluster())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ddp", "prox-csl", "taccl", "uc-mmc", "fusion"])
def test_what_gathers_no_rows_refuses_this_one(name: str) -> None:
    with pytest.raises(InputError, match="Gather"):
        get_technique(name).plan(STEP, cluster())  # type: ignore[arg-type]


def test_the_presets_rows_are_those_of_the_bars() -> None:
    preset, fitted = load_gather("sage-reddit"), calibrated()
    assert fitted.rows == pytest.approx(preset.rows, rel=0.001)
    assert fitted.train_s == pytest.approx(preset.train_s, rel=0.001)
    # By hand: 2 (5.9 - 4.0) seconds an epoch, 12.3 GB/s, requests with headers of 16 bytes.
    assert fitted.rows == pytest.approx(3.8 * 12.3e9 / 154 / (2408 + 19.75 * 16), rel=1e-5)


BY_HAND = {"GCN-2": 5.9 - 2 * 1.9, "GCN-3a": 3.8, "GCN-3b": 2.1 / 0.9}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claims_come_out_as_documented(claim: Any) -> None:
    answer = claim.check(PHYSICS)
    assert verdict(claim, answer) == ("not answerable" if claim.id == "GCN-4" else "agrees")
    if claim.id in BY_HAND:
        assert answer.value == pytest.approx(BY_HAND[claim.id], rel=1e-4)
    if claim.id.startswith("GCN-3"):
        assert notices(claim, answer, claim.check(MUTATIONS["no overlap"]))
    if claim.null is not None:
        assert claim.null().note
    for check in claim.assumptions.values():
        assert check().value is not None


def test_a_gain_from_pcie_4_that_is_smaller_than_direct_reads() -> None:
    """By hand: the host takes 5.7 of 7.8 s; it gathers for 5.7 - 3.36 s and the wire carries rows for 3.36."""
    note = next(claim for claim in CLAIMS if claim.id == "GCN-5").check(PHYSICS).note
    wire = 154 * calibrated().rows * 2408 / 12.3e9
    gather = 7.8 - 2.1 - wire
    assert math.isclose(2.1 + gather + max(wire / 2, gather), 6.77, abs_tol=0.02) and "6.8 s with PCIe 4" in note


@pytest.mark.parametrize("name", ["pinned-gather", "zero-copy"])
def test_what_needs_a_device_says_so(name: str) -> None:
    with pytest.raises(UnavailableError, match=f"{name} needs a CUDA device"):
        get_technique(name).check_run(RunSpec(name, nproc=1))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nproc": 2}, "nproc is 2"),
        ({"batch": 8}, "batch applies to runs of the language model"),
        ({"link": "200mbit"}, "link applies to"),
        ({"checkpoint_every": 4}, "checkpoint_every applies to"),
    ],
)
def test_options_of_another_kind_of_run_are_refused(change: dict[str, Any], words: str) -> None:
    spec = RunSpec("host-gather", **{"nproc": 1, **change})
    with pytest.raises(InputError, match=words):
        get_technique("host-gather").check_run(spec)  # type: ignore[attr-defined]
