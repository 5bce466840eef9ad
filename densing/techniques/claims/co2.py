"""CO2 (Sun et al., ICLR 2024, arXiv 2401.16265): the throughput of TransNormer-LLM 7B over slow links.

The published figures are words per second that a review quotes. Compute is fitted to one node, the link between nodes
to AdamW's step on 16 or 128 devices, whose communication counts as exposed whole; CO2 is then predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec.structs import replace

from densing.cluster.cluster import Cluster
from densing.cluster.presets import load_cluster
from densing.techniques.claims.calibrating import FREE, device_taking, link_taking, measured
from densing.techniques.measure import Measured
from densing.techniques.protocol import Answer, Claim
from densing.workload.presets import load_workload
from densing.workload.workload import Workload

ADAMW = {8: 18_444.0, 16: 3_488.0, 128: 22_810.0}
"""Words per second of AdamW by devices."""

SETUP = "TransNormer-LLM 7B, A100, 80 Gb/s TCP"
REVIEW = "a review that quotes the tables of arXiv 2401.16265"
FITTED = "compute fitted to AdamW's 18 444 words/s on 8 GPUs, the link to its step on {n} GPUs"
SILENT = "the simulator tells times, not accuracy"


def workload(n: int) -> Workload:
    """Return the 7B model on ``n`` replicas."""
    return load_workload("tnl-7b", dp=n)


@cache
def cluster(n: int, fitted_to: int | None = None) -> Cluster:
    """Return ``n`` devices with compute fitted to one node, and the link to AdamW's step on ``fitted_to`` devices."""
    preset = load_cluster("a100x8-tcp", n=8)
    # One published step cannot tell latency from bandwidth; gradients of 7e9 parameters are a matter of bandwidth.
    wire = replace(preset.inter, alpha_s=0.0)
    quiet = preset.change(intra=FREE, inter=wire, kappa=0.0, kappa_comm=0.0)
    one_node = device_taking(_step(8), "sequential", workload(8), quiet)
    several = fitted_to or n
    linked = link_taking(_step(several), "inter", "sequential", workload(several), one_node.change(n=several))
    return linked.change(n=n)


def _step(n: int) -> float:
    return words(n) / ADAMW[n]


def words(n: int) -> float:
    """Return the tokens of a step on ``n`` devices; every figure here is a ratio in which they cancel."""
    each = workload(n)
    return float(each.batch * each.sequence * n)


@cache
def co2(n: int, tau: int) -> Measured:
    """Simulate CO2 on ``n`` devices; the released class sends the live parameters, of two bytes here."""
    return measured("co2", workload(n), cluster(n), tau=tau, average_bytes=workload(n).dtype_bytes)


def _tau_min(n: int) -> Answer:
    found = co2(n, 48)
    return Answer(48 * found.comm_s / found.compute_s, "all-reduce of a round over the compute of a step")


def _hidden(n: int, tau: int) -> Answer:
    exposed, step = co2(n, tau).exposed_comm_s, co2(n, tau).step_s
    return Answer("hidden" if exposed < 1e-6 * step else "exposed", f"{exposed * 1e3:.3g} ms of {step * 1e3:.4g} ms")


def _marginal() -> Answer:
    """Marginal: within a tenth of the least tau that hides all."""
    least = 48 * co2(128, 48).comm_s / co2(128, 48).compute_s
    exposed = co2(128, 12).exposed_comm_s / co2(128, 12).step_s
    word = "marginal" if abs(12 / least - 1) <= 0.1 else "not marginal"
    told = f"the word is ours, for a tau within a tenth of the least, {least:.2f}"
    return Answer(word, f"{told}; {100 * exposed:.2g} % of a step exposed at tau = 12")


def _throughput(n: int, tau: int) -> Answer:
    limit = n / 8 * ADAMW[8]
    return Answer(words(n) / co2(n, tau).step_s, f"the simulator cannot exceed {n / 8:g} times one node, {limit:,.0f}")


def _scaling(tau: int) -> Answer:
    rates = [words(n) / n / co2(n, tau).step_s for n in (16, 128)]
    return Answer(rates[1] / rates[0], "the simulator cannot exceed 1: nothing but exposed communication slows a step")


def _over_adamw() -> Answer:
    adamw = measured("sequential", workload(128), cluster(128)).step_s
    return Answer(adamw / co2(128, 48).step_s)


def _extrapolated() -> Answer:
    step = measured("sequential", workload(128), cluster(128, fitted_to=16)).step_s
    return Answer(
        words(128) / step,
        "a ring over 16 nodes takes 1.9 times as long as over 2; what the published steps leave for it, 1.25 times",
    )


def _unanswered() -> Answer:
    return Answer(None, SILENT)


ARITHMETIC = ("CO2-1a", "CO2-1b")
"""The link is fitted at both sizes; what is left to check is that the simulator keeps to the arithmetic."""


def _claims() -> tuple[Claim, ...]:
    both = FITTED.format(n="16 and 128")
    wps, hand, arithmetic = "words/s", "second-hand", "derived"
    rows: tuple[tuple[str, str, float | str, str, Any, Callable[[], Answer], float | None, str], ...] = (
        ("CO2-1a", "least tau that hides all, 16 GPUs", 9.57, "steps", arithmetic, lambda: _tau_min(16), 0.05, both),
        ("CO2-1b", "least tau that hides all, 128 GPUs", 11.94, "steps", arithmetic, lambda: _tau_min(128), 0.05, both),
        ("CO2-1c", "averages at tau = 48, 128 GPUs", "hidden", "", arithmetic, lambda: _hidden(128, 48), None, both),
        ("CO2-1d", "tau = 12 at 128 GPUs", "marginal", "", arithmetic, _marginal, None, both),
        ("CO2-2a", "CO2 tau = 48, 128 GPUs", 304_736.0, wps, hand, lambda: _throughput(128, 48), 0.1, both),
        ("CO2-2b", "CO2 tau = 48, 16 GPUs", 35_936.0, wps, arithmetic, lambda: _throughput(16, 48), 0.1, both),
        ("CO2-2c", "CO2 over AdamW, 128 GPUs", 13.36, "times", arithmetic, _over_adamw, 0.1, both),
        ("CO2-3a", "words/s per GPU, 128 over 16, tau = 48", 1.06, "", hand, lambda: _scaling(48), 0.05, both),
        ("CO2-3b", "words/s per GPU, 128 over 16, tau = 12", 0.86, "", hand, lambda: _scaling(12), 0.05, both),
        ("CO2-4", "AdamW on 128 GPUs from 16", ADAMW[128], wps, hand, _extrapolated, 0.1, FITTED.format(n=16)),
    )
    sources = {hand: REVIEW, arithmetic: f"arithmetic on the words/s of {REVIEW}"}
    return tuple(
        Claim(
            name, what, SETUP, figure, unit, known, sources[known], check, tolerance, inputs, fitted=name in ARITHMETIC
        )
        for name, what, figure, unit, known, check, tolerance, inputs in rows
    )


def _quality() -> tuple[Claim, ...]:
    rows = (
        ("CO2-5a", "accuracy with CO2 (SGD: 76.92)", "ResNet-50, ImageNet", 77.14, "%"),
        ("CO2-5b", "accuracy with CO2 (AdamW: 81.33)", "ViT-B, ImageNet", 80.95, "%"),
        ("CO2-5c", "validation perplexity with CO2 (SlowMo: 7.34)", "GPT-2 Small", 7.37, "perplexity"),
        ("CO2-5d", "validation perplexity without the gap penalty", "GPT-2 Small", 7.56, "perplexity"),
    )
    return tuple(
        Claim(name, what, setup, figure, unit, "second-hand", REVIEW, _unanswered)
        for name, what, setup, figure, unit in rows
    )


CLAIMS: tuple[Claim, ...] = (*_claims(), *_quality())
