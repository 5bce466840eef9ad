"""ISO (Xiao and Su, arXiv 2409.11155): prefill with two parts of a sequence in turns.

The paper gives two reductions and no table; an independent measurement with two micro-batches is in a pull request of
vLLM. Devices and links are those of the data sheets where nothing is fitted, so the shares of communication are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from statistics import fmean

from densing.cluster.cluster import Cluster, Link
from densing.cluster.presets import load_cluster
from densing.techniques.claims.calibrating import FREE, device_taking, link_taking, measured
from densing.techniques.protocol import Answer, Claim
from densing.workload.presets import load_workload
from densing.workload.workload import Workload

ABSTRACT = "arXiv 2409.11155, abstract"
DATA_SHEETS = "bandwidths and rates of data sheets (see the presets' sources), nothing fitted"
MODELS = ("infer-30b", "infer-70b")
CONTENTION_LIMIT = 50.0


def workload(model: str) -> Workload:
    """Return a prefill over four devices."""
    return load_workload(model, mode="prefill", tp=4, dp=1)


def reduction(asked: Workload, cluster: Cluster) -> float:
    """Return by which share of the blocking step ISO is shorter; negative where it is longer."""
    blocking = measured("tensor-parallel", asked, cluster).step_s
    return 1 - measured("iso", asked, cluster).step_s / blocking


@cache
def mean_reduction(preset: str) -> float:
    """Return the mean over both sizes of model, percent."""
    return 100 * fmean(reduction(workload(model), load_cluster(preset)) for model in MODELS)


def _share(asked: Workload, cluster: Cluster) -> float:
    found = measured("tensor-parallel", asked, cluster)
    return found.exposed_comm_s / found.step_s


def _of_preset(preset: str) -> Answer:
    shares = [100 * _share(workload(model), load_cluster(preset)) for model in MODELS]
    return Answer(
        mean_reduction(preset), f"communication is {shares[0]:.0f} and {shares[1]:.0f} % of the blocking step"
    )


def _direction() -> Answer:
    slow, quick = mean_reduction("rtx4090x4-pcie"), mean_reduction("a800x4-nvlink")
    return Answer("4090 > A800" if slow > quick else "4090 <= A800", f"{slow:.1f} and {quick:.1f} %")


def _reachable(preset: str, published: float) -> Answer:
    """Whether a share of communication up to a half, beyond which less is saved, gives the published reduction."""
    asked, cluster = workload("infer-70b"), load_cluster(preset)
    blocking = measured("tensor-parallel", asked, cluster.change(intra=FREE)).step_s

    def saved(share: float) -> float:
        fitted = link_taking(blocking / (1 - share), "intra", "tensor-parallel", asked, cluster)
        return 100 * reduction(asked, fitted)

    low, high = 0.01, 0.5
    if saved(high) < published:
        return Answer("not possible", f"at most {saved(high):.0f} %")
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if saved(middle) < published else (low, middle)
    return Answer("possible", f"{100 * high:.0f} % of the blocking step")


def _latency_bound() -> Answer:
    """All-reduces of latency alone, three times as long as a module: halving the message does not halve them."""
    asked, quiet = workload("infer-70b"), load_cluster("rtx4090x4-pcie").change(intra=FREE)
    compute = measured("tensor-parallel", asked, quiet).step_s
    latency = quiet.change(intra=Link(1e-6, 0.0))
    slow = link_taking(4 * compute, "intra", "tensor-parallel", asked, latency)
    found = 100 * reduction(asked, slow)
    return Answer("slower" if found < 0 else "faster", f"{-found:+.0f} % of the blocking step")


STEP_S, REDUCED_S, SUMS_S = 1.110, 1.047, 0.248
"""vLLM pull request 44677: blocking, two micro-batches, and the all-reduces within the former."""


@cache
def vllm() -> Cluster:
    """Return devices and a link fitted to the blocking step of the pull request."""
    asked = workload("qwen3-32b")
    preset = load_cluster("h100x8-nvlink").change(n=4, per_node=4, kappa=0.0, kappa_comm=0.0)
    fast = device_taking(STEP_S - SUMS_S, "tensor-parallel", asked, preset.change(intra=FREE))
    return link_taking(STEP_S, "intra", "tensor-parallel", asked, fast.change(intra=preset.intra))


def _two_batches(kappa: Callable[[], float]) -> Answer:
    used = kappa()
    step = measured("iso", workload("qwen3-32b"), vllm().change(kappa=used)).step_s
    return Answer(1e3 * step, f"kappa {used:.2f}; it would take {_kappa_needed():.1f} to meet the figure")


@cache
def _kappa_needed() -> float:
    from scipy.optimize import brentq

    def excess(kappa: float) -> float:
        return measured("iso", workload("qwen3-32b"), vllm().change(kappa=kappa)).step_s - REDUCED_S

    found: float = brentq(excess, 0.0, CONTENTION_LIMIT, xtol=1e-2)
    return found


def _ladders_kappa() -> float:
    from densing.techniques.claims.ladder import PUBLISHED, kappa_of

    return kappa_of(tuple(row for row in PUBLISHED if row[0] == "nvlink"), "equal")


def _none() -> float:
    return 0.0


def _reductions() -> list[Claim]:
    setup = {"rtx4090x4-pcie": "30b and 70b, 4 × RTX 4090", "a800x4-nvlink": "30b and 70b, 4 × A800"}
    published = {"rtx4090x4-pcie": 35.0, "a800x4-nvlink": 15.0}
    fitted = "the link fitted to the figure itself: shows that it is possible, predicts nothing"
    return [
        *(
            Claim(
                name, "prefill time saved", setup[preset], published[preset], "%", "first-hand", ABSTRACT,
                partial(_of_preset, preset), 5 / published[preset], DATA_SHEETS,
            )
            for name, preset in (("ISO-1a", "rtx4090x4-pcie"), ("ISO-1b", "a800x4-nvlink"))
        ),
        Claim(
            "ISO-1c", "where more is saved", "30b and 70b, RTX 4090 against A800", "4090 > A800", "", "first-hand",
            ABSTRACT, _direction, None, DATA_SHEETS,
        ),
        *(
            Claim(
                name, f"{published[preset]:g} % saved at some share of communication", setup[preset], "possible", "",
                "derived", ABSTRACT, partial(_reachable, preset, published[preset]), None, fitted,
                fitted=True,
            )
            for name, preset in (("ISO-1d", "rtx4090x4-pcie"), ("ISO-1e", "a800x4-nvlink"))
        ),
        Claim(
            "ISO-1f", "all-reduces of latency alone", "70b, latency three times the compute", "slower", "",
            "derived", "direction after vLLM issue 56126 (half of a latency-bound sum takes as long); set-up ours",
            _latency_bound,
        ),
    ]  # fmt: skip


def _pull_request() -> list[Claim]:
    source = "vLLM pull request 44677"
    fit = "compute and all-reduce fitted to the blocking step (1110 ms, of which 248)"
    kappas = (
        ("ISO-2a", "no contention", _none, fit),
        ("ISO-2b", "contention of another paper", _ladders_kappa, f"{fit}; kappa fitted to Ladder's rows over NVLink"),
    )
    return [
        Claim(
            name, f"step with two parts in turns, {what}", "Qwen3-32B, TP 4, two micro-batches", 1e3 * REDUCED_S, "ms",
            "first-hand", source, partial(_two_batches, kappa), 0.1, inputs,
        )
        for name, what, kappa, inputs in kappas
    ]  # fmt: skip


CLAIMS: tuple[Claim, ...] = (*_reductions(), *_pull_request())
