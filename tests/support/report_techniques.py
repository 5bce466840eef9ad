"""Tables and timelines of techniques for the tests of figures and report, with names that try to break out."""

from __future__ import annotations

from typing import Any

from densing.core.notes import Note
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.throughput import Fits, Row, Source, Throughput
from densing.efficiency.timeline.timeline import Kind, Timeline

BREAKOUT = "</script><script>window.hacked=1</script>"
FIGURES = 6
"""Of a page that holds all of these."""
HOSTILE = "<img src=x onerror=window.hacked=1>"
COMPARE: list[dict[str, Any]] = [
    {"technique": "ddp", "step_s": 0.5, "exposed_comm_s": 0.2, "overlap_ratio": 0.5, "speedup": 1.0, "bytes": 1e6},
    {"technique": f"co2 {HOSTILE}", "step_s": 0.25, "exposed_comm_s": 0.0, "overlap_ratio": 1.0, "speedup": 2.0},
    {"technique": "ladder", "step_s": None, "exposed_comm_s": None, "speedup": None, "reason": HOSTILE},
]
REGIME: list[dict[str, Any]] = [
    {"bandwidth_gbps": gbps, "batch": batch, "technique": name, "step_s": 0.1, "speedup": up, "verdict": verdict}
    for name, rows in (
        ("ddp", ((1.0, "ties"),) * 4),
        (f"co2 {HOSTILE}", ((2.0, "wins"), (1.01, "ties"), (0.5, "loses"), (None, "does not apply"))),
    )
    for (gbps, batch), (up, verdict) in zip(((10.0, 1), (10.0, 4), (100.0, 1), (100.0, 4)), rows, strict=True)
]
TAU: list[dict[str, Any]] = [
    {
        "technique": f"co2 {HOSTILE}",
        "tau": tau,
        "link": "200mbit",
        "exposed_s": 0.4 / tau,
        "step_s": 1.0,
        "predicted": p,
    }
    for tau in (1, 4, 16)
    for p in (True, False)
]


def simulated(ranks: int = 2, seconds: float = 0.1) -> Timeline:
    graph = Graph()
    for step in range(5):
        graph.step = step
        passes = [graph.add(f"gemm {HOSTILE}", Kind.COMPUTE, (r,), "compute", seconds) for r in range(ranks)]
        graph.add("all_reduce", Kind.COMM, tuple(range(ranks)), "comm", 0.05, after=passes)
    return simulate(graph).timeline


def claim(number: int, evidence: str, verdict: str, **change: Any) -> dict[str, Any]:
    row = {"technique": "co2", "claim": f"CO2-{number}", "what": "tau that hides", "setup": BREAKOUT, "published": 9.6,
           "unit": "steps", "evidence": evidence, "source": f"table 2 {HOSTILE}", "ours": 9.5, "error": -0.0104,
           "grade": "predicted", "verdict": verdict, "inputs": "", "note": HOSTILE}  # fmt: skip
    return {**row, **change}


CLAIMS = [
    claim(1, "second-hand", "reproduced", inputs="step time"),
    claim(2, "first-hand", "not reproduced", ours=20.0, error=1.08),
    claim(3, "recalled", "not answerable", ours=None, error=None),
    claim(4, "derived", "agrees", published="4090 > A800", ours="4090 > A800", error=None, unit="", grade="algebraic"),
    claim(5, "second-hand", "not answerable", ours=None, error=None),
    claim(
        6,
        "first-hand",
        "differs",
        grade="calibrated on other rows",
        null=9.0,
        null_error=-0.0625,
        null_model=f"all hidden {HOSTILE}",
        turned_by=["no overlap"],
        assumptions={"batch 4": 9.6, "batch 8": 1.0},
        decided_by=["batch 4"],
    ),
]
PREDICTED = [
    {"technique": "ddp", "quantity": "step", "unit": "s", "predicted": 0.12, "measured": 0.1},
    {"technique": "co2", "quantity": "exposed", "unit": "s", "predicted": 0.01, "measured": None},
]
NOTES = (
    Note("far", "info", f"far {HOSTILE}", {"a": 1}),
    Note("broken-claim", "error", "a check broke"),
    Note("broken-claim", "error", "a check broke", {"other": 2}),
)
TIMELINES = [(f"recorded {HOSTILE}", simulated()), ("simulated", simulated(3))]
SPEEDS = Throughput(
    HOSTILE,
    tuple(
        Row(f"{HOSTILE} {number}", HOSTILE, "predicted", predicted_tokens_per_s=speed, measured_tokens_per_s=1e5)
        for number, speed in enumerate((9e4, 2e5, None))
    ),
    (Source(HOSTILE, 3, 2, median_error=0.5, p90_error=1.0), Source("unknown", 1, 0)),
    Fits(3, 0),
    "0" * 64,
)
WHOLE: dict[str, Any] = {"compare": COMPARE, "regime": REGIME, "claims": CLAIMS, "timelines": TIMELINES, "tau": TAU,
                         "predicted": PREDICTED, "throughput": SPEEDS, "notes": NOTES}  # fmt: skip
