"""What a plan recommends is held to brute force over its own equations: nothing is two per cent faster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from densing.core.errors import InputError
from densing.efficiency.simulation import Cluster, Transformer, load_cluster, load_workload
from densing.efficiency.throughput import frozen, plan_layout, step_seconds
from densing.efficiency.throughput.fitted import constants_on, runs_of

BETTER = 0.02
MOST_VIRTUAL, MOST_MICRO_BATCH, LEAST_PIECE, SHORTER = 24, 64, 4096, 2
"""Stages per device and sequences per micro-batch that were measured at most; tokens of a sequence that a device takes
at least; layers by which the first and the last stage together may be shorter."""


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def possible(model: Transformer, cluster: Cluster, devices: int, batch: int, sequence: int) -> Iterator[tuple]:
    """Every split into whole numbers; no list of powers of two, and no order of trying."""
    for tp, cp, pp in product(divisors(devices), repeat=3):
        dp, left = divmod(devices, tp * cp * pp)
        # A tensor-parallel group that lies across nodes is not one of the model's: its sums take the links of a node.
        node = min(cluster.per_node, devices)
        whole = node % tp == 0 and model.heads % tp == 0 and pp <= model.layers
        pieces = cp == 1 or (sequence % (2 * cp) == 0 and sequence // cp >= LEAST_PIECE)
        if left or not whole or not pieces or batch % max(dp, 1):
            continue
        for micro in divisors(batch // dp):
            parts = batch // dp // micro
            for virtual in range(1, MOST_VIRTUAL + 1):
                dealt = pp * virtual <= model.layers and -model.layers % (pp * virtual) <= SHORTER
                interleaved = virtual == 1 or (pp > 1 and parts % pp == 0)
                if micro > MOST_MICRO_BATCH or not dealt or not interleaved:
                    continue
                # Of a pipeline only optimizer states are kept in shards; one replica has nothing to share.
                stages = (0,) if dp == 1 else (0, 1) if pp > 1 else (0, 1, 2, 3)
                yield from ((tp, pp, virtual, dp, micro, parts, zero, again, 1, cp)
                            for zero, again in product(stages, range(3)))  # fmt: skip


def fastest(model: Transformer, cluster: Cluster, devices: int, batch: int, sequence: int) -> float:
    """Seconds of the fastest split that fits; infinite where none does."""
    runs = runs_of(model, cluster, sequence, list(possible(model, cluster, devices, batch, sequence)))
    seconds = step_seconds(runs, constants_on(cluster, frozen())).step
    # Memory is slow to count: in blocks from the fastest on, until one fits.
    order = np.argsort(seconds, kind="stable")
    for block in np.array_split(order, max(len(order) // 50, 1)):
        fits = frozen().peak_bytes(runs.take(block)) <= cluster.device.memory
        if fits.any():
            return float(seconds[block[np.argmax(fits)]])
    return math.inf


QUICK = [
    ("gpt2", "h100x8-nvlink", 48, 144, 2048),
    ("llama-8b", "a100x8-tcp", 64, 1024, 4096),
    ("llama-8b", "h100x8-nvlink", 256, 256, 32_768),
    ("llama3-70b", "a100x8-rdma", 96, 960, 8192),
    ("gpt3", "h100x8-nvlink", 1024, 1024, 4096),
    ("gpt3", "rtx4090x4-pcie", 64, 64, 4096),
]
# Every seventh: each model, each cluster and each size, in other company.
SLOW = [
    (model, cluster, *step)
    for model in ("gpt2", "llama-8b", "llama3-70b", "qwen3-32b", "gpt3", "llama3-405b")
    for cluster in ("a100x8-rdma", "a100x8-tcp", "h100x8-nvlink", "rtx4090x4-pcie", "a800x4-nvlink")
    for step in ((1, 8, 2048), (8, 64, 4096), (24, 96, 4096), (48, 144, 2048), (96, 960, 8192), (160, 480, 16_384),
                 (256, 256, 32_768), (1024, 1536, 4096), (3072, 3072, 4096))
][::7]  # fmt: skip


def held(name: str, preset: str, devices: int, batch: int, sequence: int) -> None:
    model, cluster = load_workload(name).model, load_cluster(preset, n=devices)
    best = fastest(model, cluster, devices, batch, sequence)
    try:
        planned = plan_layout(model, cluster, devices, batch=batch, sequence=sequence).layouts[0].step_s
    except InputError:
        # What is refused has nothing that fits.
        assert best == math.inf
        return
    assert best <= planned <= (1 + BETTER) * best


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_nothing_is_two_per_cent_faster_than_the_plan(case: tuple[str, str, int, int, int]) -> None:
    held(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_nothing_is_two_per_cent_faster_on_a_grid_of_models_clusters_and_sizes(
    case: tuple[str, str, int, int, int],
) -> None:
    held(*case)


def test_brute_force_has_splits_that_the_plan_does_not_try() -> None:
    cluster = load_cluster("a100x8-rdma", n=24)
    every = list(possible(load_workload("llama-8b").model, cluster, 24, 96, 49_152))
    assert len(every) == len(set(every))
    assert {3, 6, 12} <= {split[-1] for split in every} and {3, 6, 12} <= {split[4] for split in every}
