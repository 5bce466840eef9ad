"""Shapes of the ladders against the paper's Table 1, and the schedule against its formula."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import DomainError, UnknownNameError
from densing.scores.ladder.runs import PRESETS, Budget, budgets, choose, factor, get_preset, ladder_runs, target_runs

# arXiv 2412.04315, Table 1: layers, d, d_ffn, d_head, heads, key-value heads, batch; and the counts that follow from
# it, as the repository openbmb/DensingLaw-ScalingModels states them (s1 to s6).
TABLE_1 = {
    "0.005B": ((8, 256, 640, 64, 4, 1, 32), 5_247_232),
    "0.03B": ((12, 512, 1280, 64, 8, 2, 32), 31_470_080),
    "0.1B": ((18, 768, 1920, 64, 12, 3, 64), 106_196_736),
    "0.2B": ((24, 1024, 2560, 64, 16, 2, 128), 245_416_960),
    "0.4B": ((30, 1280, 3200, 64, 20, 2, 256), 476_852_480),
    "0.8B": ((36, 1536, 3840, 64, 24, 3, 512), 828_225_024),
}


def test_paper_preset_is_table_1() -> None:
    shapes = get_preset("paper").shapes
    assert [s.name for s in shapes] == list(TABLE_1)
    for shape in shapes:
        row, count = TABLE_1[shape.name]
        found = (shape.layers, shape.width, shape.ffn, shape.head_width, shape.heads, shape.kv_heads, shape.batch)
        assert found == row
        assert shape.non_embedding == count


def test_paper_budgets_are_10_to_60_tokens_per_parameter() -> None:
    preset = get_preset("paper")
    for shape in preset.shapes:
        ratios = [preset.tokens(shape, steps) / shape.non_embedding for steps in shape.steps]
        # Budgets are whole steps, so they overshoot by less than one.
        step = shape.batch * preset.block / shape.non_embedding
        assert all(0 <= got - asked < step for got, asked in zip(ratios, (10, 15, 20, 30, 40, 60), strict=True))


def test_gpu_preset_is_four_sizes_from_5_to_about_100_million_with_the_same_tokens() -> None:
    preset = get_preset("gpu")
    counts = [shape.non_embedding for shape in preset.shapes]
    assert len(counts) == 4 and counts[0] > 5e6 and 90e6 < counts[-1] < 110e6 and counts == sorted(counts)
    assert len({tuple(preset.tokens(shape, steps) for steps in shape.steps) for shape in preset.shapes}) == 1
    # Four virtual ranks divide every step, and 16 of their steps the shortest budget.
    assert all(shape.batch % 4 == 0 and shape.steps[0] % 16 == 0 for shape in preset.shapes)


@pytest.mark.parametrize("name", ["tiny", "cpu", "gpu"])
def test_small_presets_keep_the_papers_proportions(name: str) -> None:
    for shape in get_preset(name).shapes:
        assert shape.ffn == 2.5 * shape.width
        assert shape.heads % shape.kv_heads == 0
        assert shape.kv_heads < shape.heads
        assert shape.heads * shape.head_width == shape.width
        assert shape.head_width % 2 == 0  # rotary positions turn pairs


def test_cpu_preset_spans_what_the_issue_asks() -> None:
    preset = get_preset("cpu")
    totals = [shape.total(703) for shape in preset.shapes]
    assert len(totals) == 7
    assert totals == sorted(totals)
    assert totals[0] == pytest.approx(7_000, rel=0.01)
    assert totals[-1] > 150_000
    for shape in preset.shapes:
        assert shape.steps[-1] / shape.steps[0] > 5


@pytest.mark.parametrize("name", list(PRESETS))
def test_counts_are_those_of_the_real_models(name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from densing.scores.ladder.folder import count_parameters
    from densing.scores.ladder.trainer import build_model

    vocabulary = 101
    for shape in get_preset(name).shapes:
        with torch.device("meta"):
            model = build_model(shape, vocabulary, 64, 0, "meta")
        assert count_parameters(model) == (shape.total(vocabulary), shape.non_embedding)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="cpu"):
        get_preset("cpuu")
    with pytest.raises(UnknownNameError, match="d8"):
        choose(get_preset("cpu"), ["d9"])


def test_schedule_by_hand() -> None:
    plan = budgets((100, 200), 0.2)
    assert plan == (Budget(80, 100), Budget(160, 200))
    assert [factor(step, 10, None) for step in (0, 4, 9, 10, 1000)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    # 1 - sqrt((s - branch) / (end - branch)), by hand at a quarter of the decay.
    assert factor(85, 10, plan[0]) == pytest.approx(0.5)
    assert factor(79, 10, plan[0]) == 1
    assert factor(170, 10, plan[1]) == pytest.approx(0.5)


@given(st.integers(10, 5000), st.floats(0.05, 0.9), st.integers(1, 50))
def test_decay_falls_from_the_peak_towards_nothing(end: int, share: float, warmup: int) -> None:
    (budget,) = budgets((end,), share)
    rates = [factor(step, warmup, budget) for step in range(budget.branch, budget.end)]
    assert all(0 < rate <= 1 for rate in rates)
    if budget.branch >= warmup:
        assert rates[0] == 1
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] == pytest.approx(1 - math.sqrt(1 - 1 / len(rates)))


@pytest.mark.parametrize("steps", [(), (0, 5), (5, 5), (9, 3)])
def test_budgets_must_ascend(steps: tuple[int, ...]) -> None:
    with pytest.raises(DomainError):
        budgets(steps, 0.2)


def test_runs_of_a_ladder_and_of_targets() -> None:
    from densing.scores.ladder.corpus import Generated

    preset = get_preset("cpu")
    runs = ladder_runs(preset, Generated(), seeds=3, seed=4)
    assert len({run.name for run in runs}) == len(runs) == 21
    assert {run.seed for run in runs} == {4, 5, 6}
    for kind in ("longer", "clean", "shuffled"):
        targets = target_runs(preset, Generated(), kind, seeds=2, factor=3)
        assert {run.target for run in targets} == {kind}
        assert not {run.seed for run in targets} & {run.seed for run in runs}
        assert [run.steps for run in targets] == [(9600,) if kind == "longer" else (3200,)] * 2
    assert runs[0].work == 0.8 * 3200 + 0.2 * (600 + 1050 + 1850 + 3200)
