"""The sentence to quote a density by: true to its row, whole, and never more certain than it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import densing
from densing.scores.density import density_sentence, density_sentences
from tests.support.command import answer
from tests.support.command import densing as run

ROW = {
    "model": "Mine-7B", "reference": "qwen1.5", "benchmark": "mmlu", "denominator": "total", "density": 1.294,
    "density_lo": 1.04, "density_hi": 1.66, "bound": "", "status": "ok", "protocol": "same", "protocol_detail": "",
}  # fmt: skip
OTHERS = "it must not be compared with densities on another reference or benchmark"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "Mine-7B has density 1.3 (95 % interval of the measurement 1.0 to 1.7) on the reference qwen1.5, "
             f"benchmark mmlu; {OTHERS}."),
        ({"bound": "upper", "status": "below_floor", "density_lo": 0.0, "density_hi": 0.05},
         "has density at most 0.050 (score at or below the floor) on the reference"),
        ({"bound": "lower", "status": "above_ceiling", "density_lo": 9.0, "density_hi": float("inf")},
         "has density at least 9.0 (score at or above the ceiling) on the reference"),
        ({"density_hi": float("inf")}, "(95 % interval of the measurement 1.0 and more)"),
        ({"density_hi": None}, "(95 % interval of the measurement 1.0 and more)"),
        ({"density_lo": None, "density_hi": None}, "(95 % interval of the measurement without ends)"),
        ({"denominator": "active"}, "benchmark mmlu, over active parameters; it must"),
        ({"denominator": "non_embedding"}, "over parameters without embeddings"),
        ({"benchmark": "combined", "benchmarks": "piqa+csqa", "quantity": "loss"},
         "on the reference qwen1.5, 2 benchmarks together (piqa, csqa) by loss; it"),
        ({"protocol": "differs", "protocol_detail": "shots 0, reference 5"},
         f"{OTHERS}, nor with others on this one: it was measured differently (shots 0, reference 5)."),
        ({"protocol": "unknown"}, f"{OTHERS}, and only with care with others on this one: how it was measured is not"),
        ({"model": "two\nlines \u202e"}, "two lines has density"),
        ({"model": "m" * 120}, "m" * 120 + " has density"),
        ({"model": "m" * 121}, "m" * 119 + "… has density"),
        ({"reference": "r" * 80}, " reference " + "r" * 80 + ", benchmark"),
        ({"reference": "r" * 81}, " reference " + "r" * 79 + "…, benchmark"),
    ],
)  # fmt: skip
def test_a_sentence_says_what_its_row_says(change: dict[str, Any], said: str) -> None:
    assert said in density_sentence({**ROW, **change})


def test_a_level_is_named() -> None:
    assert "(90 % interval" in density_sentence(ROW, 0.9)


def test_a_model_has_the_sentence_of_its_combined_loss_and_without_one_that_of_every_row() -> None:
    def row(benchmark: str, quantity: str) -> dict[str, Any]:
        return {**ROW, "benchmark": benchmark, "benchmarks": "piqa+csqa", "quantity": quantity}

    whole = [row("piqa", "score"), row("combined", "score"), row("combined", "loss")]
    [sentence] = density_sentences(pd.DataFrame(whole))
    assert "together" in sentence and "by loss" in sentence
    assert len(density_sentences(pd.DataFrame([row("piqa", "score"), row("csqa", "score")]))) == 2
    two = pd.DataFrame([{**ROW, "model": "b"}, {**ROW, "model": "a"}])
    assert [sentence[0] for sentence in density_sentences(two)] == ["b", "a"]


def test_commands_end_with_sentences_of_ones_own_models_alone() -> None:
    own = ("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", "examples/my_scores.csv")
    said = run(*own).stderr
    quoted = said.partition("To quote:\n")[2].splitlines()
    reference = densing.load_reference("qwen1.5", "mmlu")
    assert quoted == densing.table_densities("examples/my_scores.csv", reference).sentences() and len(quoted) == 2
    assert [row["sentence"] for row in answer(*own)] == quoted
    assert "To quote" not in run("density", "-r", "qwen1.5", "-b", "mmlu").stderr, "of 104 models nobody quotes each"


def test_a_trend_is_quoted_with_both_paces_its_models_and_its_reference() -> None:
    reference = densing.load_reference("qwen1.5", "mmlu")
    everyone = densing.catalog_densities(densing.load_catalog(), reference).headline
    trend = densing.estimate_trend(
        densing.TrendData.from_density(everyone).window("2023-02-24"), permutations=19, bootstrap=50, worlds=0
    )
    said = trend.quoted("qwen1.5", "mmlu")
    families = len(set(trend.data.family))
    assert said.startswith(f"{trend.title}; {len(trend.data)} models of {families} families on the reference qwen1.5,")
    assert trend.now in said and said.endswith("give another pace.")
