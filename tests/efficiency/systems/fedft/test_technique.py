"""What clients' techniques send and count: plans by hand, shapes of published networks, claims without their data."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from densing.core import InputError
from densing.efficiency.simulation import modules, tensor_shapes
from densing.efficiency.systems.claims import PHYSICS
from densing.efficiency.systems.experiments import rerun
from densing.efficiency.systems.fedft import technique as federated
from densing.efficiency.systems.registry import get_technique
from densing.efficiency.systems.spafl import technique as spafl
from densing.efficiency.systems.validation import verdict
from tests.support.plans import TOY, cluster, measured, workload

NAMES = ("fedavg", "fedprox", "topk-delta", "int8-delta", "fedft", "spafl")
ALL = {claim.id: claim for claim in (*federated.CLAIMS, *spafl.CLAIMS)}


def counts(ranks: int) -> list[int]:
    work = workload(dp=ranks)
    return [math.prod(shape) for module in modules(work) for shape in tensor_shapes(work, module)]


def test_shapes_are_all_parameters() -> None:
    assert sum(counts(2)) == sum(module.parameters for module in modules(workload(dp=2)))


@pytest.mark.parametrize("ranks", [2, 5])
def test_bytes_of_a_round_are_those_of_packets(ranks: int) -> None:
    tau = 4
    sent = {name: tau * measured(name, workload(dp=ranks), cluster(ranks), tau=tau).bytes for name in NAMES}
    ring, gather = 2 * (ranks - 1) / ranks, (ranks - 1) / ranks
    every = counts(ranks)
    dense = 4 * sum(every)
    assert sent["fedavg"] == sent["fedprox"] == pytest.approx(ring * (dense + 4 * ranks + 24))
    # The lowest 7 in 10 coefficients; norms of 64 elements whole.
    prefix = 4 * sum(count if count < 256 else round(0.7 * count) for count in every)
    assert sent["fedft"] == pytest.approx(ring * (prefix + 4 * ranks + 24))
    eight = sum(4 * count if count < 256 else count + 4 for count in every)
    assert sent["int8-delta"] == pytest.approx(ring * 24 + gather * ranks * (8 + eight + 8))
    # A tenth of the entries: a bit per element weighs less than their indices.
    some = sum(4 * count if count < 256 else 4 + count // 8 + 4 * round(0.1 * count) for count in every)
    assert sent["topk-delta"] == pytest.approx(ring * 24 + gather * ranks * (8 + some + 8))
    # Rows of queries, keys, values, output, gate, up and down in each layer; the toy's head is its embedding.
    rows = TOY.layers * (4 * 64 + 2 * 256 + 64) + (0 if TOY.tied else TOY.vocabulary)
    assert sent["spafl"] == pytest.approx(ring * (4 * (rows + ranks + 1) + 24))


def test_fedavg_takes_what_local_sgd_takes() -> None:
    work, on = workload(dp=4), cluster(4, 1e-5, 1e-9)
    ours, theirs = (measured(name, work, on, tau=3).step_s for name in ("fedavg", "local-sgd"))
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_transforms_take_time_and_channels_that_are_gone_take_none() -> None:
    work, on = workload(dp=2), cluster(2, beta=0.0, flops=1e9)
    total = sum(module.parameters for module in modules(work))
    plain, coded = (measured(name, work, on, tau=2, **knobs).step_s for name, knobs in
                    (("fedavg", {}), ("fedft", {"keep": 1.0})))  # fmt: skip
    assert 2 * (coded - plain) == pytest.approx(2 * 5 * total * math.log2(total) / 1e9, rel=1e-3)
    whole, half = (measured("spafl", work, on, tau=2, kept=kept).compute_s for kept in (1.0, 0.5))
    blocks = sum(m.flops + m.backward_flops for m in modules(work) if m.name in ("attention", "mlp"))
    assert whole - half == pytest.approx(0.5 * blocks / 1e9, rel=1e-3)


def test_a_client_alone_sends_nothing() -> None:
    found = measured("local-only", workload(dp=3), cluster(3))
    assert (found.bytes, found.comm_s) == (0, 0)


@pytest.mark.parametrize("name", (*NAMES, "local-only"))
def test_one_replica_has_nobody_to_exchange_with(name: str) -> None:
    with pytest.raises(InputError, match="dp >= 2"):
        get_technique(name).plan(workload(dp=1), cluster(1))


@pytest.mark.parametrize("claim", [claim for claim in spafl.CLAIMS if claim.grade == "counted"], ids=lambda c: c.id)
def test_traffic_is_counted_from_shapes(claim: Any) -> None:
    assert verdict(claim, claim.check(PHYSICS)) == "agrees"


def test_recalled_figures_are_nowhere() -> None:
    """Two of the paper's figures as recalled disagree with the released shapes, and are not listed."""
    texts = [f"{claim.published} {claim.what} {claim.setup} {claim.source}" for claim in ALL.values()]
    assert not any(figure in text for text in texts for figure in ("0.4537", "4.608", "89.21", "69.75", "40.8"))


@pytest.mark.parametrize("name", [claim.id for claim in ALL.values() if claim.grade != "counted"])
def test_without_digits_a_direction_is_not_answerable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    from densing.efficiency.parallel.data_parallel import digits

    digits.shared_out.cache_clear()
    claim = ALL[name]
    with rerun():
        answer = claim.check(PHYSICS)
    assert verdict(claim, answer) == "not answerable"
    assert "pip install scikit-learn" in answer.note


@pytest.mark.parametrize("name", ["FFT-1", "FFT-3", "FFT-4"])
def test_directions_are_those_of_the_documentation(name: str) -> None:
    """Top-K of weights is as good as of coefficients, which the publication does not say."""
    assert verdict(ALL[name], ALL[name].check(PHYSICS)) == "agrees"
