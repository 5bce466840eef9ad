"""What is independent in the world is independent in the draws, and intervals hold what scatters.

Worlds: a family of eight sizes on a known logistic curve per benchmark, members and targets with scores measured to
0.01, and, where the test says so, models that lie 0.012 beside the curve (that of Qwen1.5 on HellaSwag).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from densing.core.arrays import named_seed
from densing.core.errors import InputError, UnknownNameError
from densing.scores.catalog import load_catalog
from densing.scores.density import (
    DensityResult,
    catalog_densities,
    combined_densities,
    compare_references,
    estimate_density,
    model_scatter,
    rank,
)
from densing.scores.density.combination import combine_results
from densing.scores.density.inversion import joint_scatter
from densing.scores.fit import fit_law
from densing.scores.references import Reference, build_reference, load_reference, loss_reference
from densing.scores.trend import TrendData
from tests.support.budget import FULL
from tests.support.command import densing, printed
from tests.support.references import LOGISTIC, SIZES, TRUTH, logistic_reference

TARGETS = [f"target {number}" for number in range(8)]
BENCHMARKS = [f"benchmark {number}" for number in range(7)]
SE, SCATTER = 0.01, 0.012


def curve(params: np.ndarray) -> np.ndarray:
    return LOGISTIC.predict(TRUTH, {"params": np.asarray(params, dtype=float)})


def toy_reference(rng: np.random.Generator, benchmark: str, beside: np.ndarray | float, draws: int = 300) -> Reference:
    """A family measured in this world; ``beside`` is how far each member lies from the curve."""
    score = curve(SIZES) + beside + SE * rng.standard_normal(len(SIZES))
    seed = named_seed(int(rng.integers(2**31)), benchmark)
    return logistic_reference(score, benchmark, draws=draws, seed=seed, score_se=SE)


def rows(score: np.ndarray, models: list[str] = TARGETS) -> pd.DataFrame:
    return pd.DataFrame({"model": models, "score": score, "score_se": SE, "params_total": 5e9})


def world(
    rng: np.random.Generator, benchmarks: list[str], scatter: float = 0.0, common: float = 0.0, seed: int = 0
) -> tuple[np.ndarray, list[DensityResult]]:
    """True densities of the targets, and what each benchmark's reference says of them.

    ``common`` is the share of the scatter's variance that a model has on all benchmarks alike.
    """
    truth = np.exp(rng.uniform(math.log(1e9), math.log(60e9), len(TARGETS)))
    of_members, of_targets = rng.standard_normal(len(SIZES)), rng.standard_normal(len(TARGETS))

    def beside(alike: np.ndarray) -> np.ndarray:
        return scatter * (math.sqrt(common) * alike + math.sqrt(1 - common) * rng.standard_normal(len(alike)))

    read = []
    for name in benchmarks:
        reference = toy_reference(rng, name, beside(of_members))
        score = curve(truth) + beside(of_targets) + SE * rng.standard_normal(len(TARGETS))
        read.append(estimate_density(rows(score), reference, seed=seed))
    return truth / 5e9, read


def holds(result: DensityResult, truth: np.ndarray, suffix: str = "") -> np.ndarray:
    table = result.table.set_index("model").reindex(TARGETS)
    return ((table[f"density_lo{suffix}"] <= truth) & (truth <= table[f"density_hi{suffix}"])).to_numpy()


def width(table: pd.DataFrame, suffix: str = "") -> float:
    """Median width of the intervals in ln density."""
    return float(np.log(table[f"density_hi{suffix}"] / table[f"density_lo{suffix}"]).median())


def noise_of(result: DensityResult, model: str) -> np.ndarray:
    return (result.draws - result.law_draws)[:, result.table["model"].tolist().index(model)]


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    return abs(float(np.corrcoef(first, second)[0, 1]))


@pytest.fixture(scope="module")
def read() -> list[DensityResult]:
    return world(np.random.default_rng(7), BENCHMARKS)[1]


def test_every_benchmark_and_every_model_has_noise_of_its_own(read: list[DensityResult]) -> None:
    inside = [name for name in TARGETS if all(noise_of(result, name).std() > 0 for result in read)]
    assert correlation(noise_of(read[0], inside[0]), noise_of(read[1], inside[0])) < 0.25
    assert correlation(noise_of(read[0], inside[0]), noise_of(read[0], inside[1])) < 0.25


def test_the_same_score_on_two_references_carries_the_same_noise() -> None:
    rng = np.random.default_rng(3)
    table = rows(np.full(8, 0.55))
    first, second = (estimate_density(table, toy_reference(rng, "mmlu", 0.0)) for _ in range(2))
    assert correlation(noise_of(first, TARGETS[0]), noise_of(second, TARGETS[0])) > 0.9


def test_other_models_and_their_order_change_no_models_draws() -> None:
    reference = toy_reference(np.random.default_rng(3), "mmlu", 0.0)
    table = rows(np.linspace(0.4, 0.75, 8))
    whole = estimate_density(table, reference)
    part = estimate_density(table.iloc[[5, 2, 7]], reference)
    for draws in ("draws", "law_draws", "model_draws"):
        np.testing.assert_array_equal(getattr(whole, draws)[:, [5, 2, 7]], getattr(part, draws))


def test_a_model_measured_twice_in_one_table_has_two_noises() -> None:
    reference = toy_reference(np.random.default_rng(3), "mmlu", 0.0)
    twice = estimate_density(rows(np.full(2, 0.55), ["a", "a"]), reference)
    away = twice.draws - twice.law_draws
    assert correlation(away[:, 0], away[:, 1]) < 0.25


def test_another_seed_draws_other_noise() -> None:
    reference = toy_reference(np.random.default_rng(3), "mmlu", 0.0)
    first, again, other = (estimate_density(rows(np.full(8, 0.55)), reference, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.draws, again.draws)
    assert correlation(noise_of(first, TARGETS[0]), noise_of(other, TARGETS[0])) < 0.25


@pytest.mark.parametrize("family", ["qwen1.5", "llama", "pythia", "qwen2.5"])
def test_shipped_references_of_one_family_draw_their_curves_independently(family: str) -> None:
    heights = []
    for name in load_reference(family).benchmarks:
        fit = load_reference(family, name).fit
        middle = math.sqrt(math.prod(fit.domain["params"]))
        heights.append(fit.law.predict(fit.draws, {"params": np.array([middle])})[:, 0])
    pairs = np.corrcoef(heights)[np.triu_indices(len(heights), 1)]
    assert np.abs(pairs).max() < 5 / math.sqrt(1000), "pairs of 1,000 independent draws correlate by 0.03"


def test_one_benchmark_under_two_names_is_one_curve() -> None:
    """The skill code is HumanEval alone on this reference: the same data, the same draws."""
    skill, alone = (build_reference(load_catalog(), "qwen1.5", name, draws=20) for name in ("code", "humaneval"))
    assert skill.benchmarks == alone.benchmarks and skill.evaluator == alone.evaluator
    np.testing.assert_array_equal(skill.fit.draws, alone.fit.draws)


def test_the_combined_measurement_is_as_narrow_as_independent_benchmarks_make_it(read: list[DensityResult]) -> None:
    combined = combine_results(read, read[0].reference)
    found = joint_scatter([result.reference for result in read])[0]
    assert found is not None
    # Seven curves on five degrees of freedom each, and what their members happen to have in common.
    design = (1 - found.common) * (35 / 33) / (5 / 3) + 7 * found.common
    for name in combined.table["model"]:
        places = [result.table["model"].tolist().index(name) for result in read]
        law = np.mean([result.law_draws[:, at].var() for result, at in zip(read, places, strict=True)]) / 7 * design
        noise = np.mean([noise_of(result, name).var() for result in read]) / 7
        spread = combined.draws[:, combined.table["model"].tolist().index(name)].std()
        assert spread == pytest.approx(math.sqrt(law + noise), rel=0.2)


def test_the_order_of_benchmarks_changes_nothing() -> None:
    catalog, mean = load_catalog(), load_reference("qwen1.5")
    parts = [load_reference("qwen1.5", name) for name in mean.benchmarks[:3]]
    there, back = (combined_densities(catalog, mean, order).table for order in (parts, parts[::-1]))
    figures = ["density", "density_lo", "density_hi", "density_lo_recipe", "density_hi_recipe"]
    pd.testing.assert_frame_equal(
        there.set_index("model")[figures].sort_index(), back.set_index("model")[figures].sort_index()
    )


def test_scatter_is_what_the_residuals_hold_beyond_the_sampling_of_items() -> None:
    rng = np.random.default_rng(11)
    found = []
    for _ in range(200):
        reference = toy_reference(rng, "mmlu", SCATTER * rng.standard_normal(8), draws=0)
        scatter = model_scatter(reference)
        assert scatter is not None and (scatter.freedom, scatter.noise) == (5.0, pytest.approx(SE**2))
        found.append(scatter.total - scatter.noise)
    assert np.mean(found) == pytest.approx(SCATTER**2, rel=0.2), "unbiased, although three parameters were fitted"


def test_a_reference_whose_curve_meets_every_point_knows_no_recipe() -> None:
    size = SIZES[[0, 3, 6]]
    fit = fit_law(LOGISTIC, {"params": size}, curve(size), bootstrap=50, scheme="case", seed=0)
    points = pd.DataFrame(
        {"model": list("abc"), "params": size, "score": curve(size), "score_se": 0.0, "held_out": False}
    )
    exact = Reference("three", "three", "mmlu", ("mmlu",), "toy", fit, points)
    assert model_scatter(exact) is None
    result = estimate_density(rows(np.full(8, 0.5)), exact)
    assert set(result.table["interval"]) == {"measured; scatter unknown"}
    assert result.table[["density_lo_recipe", "share_ruler"]].isna().all(axis=None) and result.spread == ""
    assert "measurement-only" in {note.code for note in result.notes}
    np.testing.assert_array_equal(result.draws, result.model_draws)


def test_a_reference_of_losses_scatters_in_proportion() -> None:
    losses = loss_reference(load_reference("olmo-ladder", "hellaswag"))
    scatter = model_scatter(losses)
    assert scatter is not None and scatter.relative
    assert scatter.sd == pytest.approx(np.sqrt(np.sum(losses.fit.residuals**2) / (16 - 5)))


def test_members_that_go_together_on_every_benchmark_are_not_counted_as_independent() -> None:
    """Two generations in one family: what lifts one model on all benchmarks stays in the mean over them."""
    references = [load_reference("llama", name) for name in load_reference("llama").benchmarks]
    found = joint_scatter(references)[0]
    assert found is not None and found.common > 0.5
    rng = np.random.default_rng(2)
    alike = SCATTER * 3 * rng.standard_normal(8)
    together = joint_scatter([toy_reference(rng, name, alike, draws=0) for name in BENCHMARKS])[0]
    apart = joint_scatter([toy_reference(rng, name, 0.036 * rng.standard_normal(8), draws=0) for name in BENCHMARKS])[0]
    assert together is not None and apart is not None
    assert together.common > 0.7 and apart.common < 0.3


def test_both_intervals_stand_in_the_table_and_the_measured_one_lies_inside() -> None:
    table = catalog_densities(load_catalog(), load_reference("qwen1.5", "hellaswag")).table
    assert set(table["interval"]) == {"measured"}
    inside = table[table["bound"].eq("") & np.isfinite(table["density_hi_recipe"]) & table["density_lo_recipe"].gt(0)]
    assert width(inside, "_recipe") > 1.2 * width(inside)
    assert (inside["density_lo_recipe"] < inside["density_lo"] * 1.02).all()


def test_the_parts_of_the_variance_are_those_of_the_world() -> None:
    """On a straight piece of the curve: the error of a score and the scatter, both known, over what was fitted."""
    rng = np.random.default_rng(5)
    reference = toy_reference(rng, "mmlu", SCATTER * rng.standard_normal(8), draws=2000)
    result = estimate_density(rows(np.full(8, 0.55)), reference)
    shares = result.table[["share_ability", "share_ruler", "share_scatter"]].astype(float)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    scatter = model_scatter(reference)
    assert scatter is not None
    # The variance of the scatter is drawn on five degrees of freedom: a mean of 5/3 of the estimate, before the noise.
    expected = (scatter.total * 5 / 3 - scatter.noise) / SE**2
    assert shares["share_scatter"].mean() / shares["share_ability"].mean() == pytest.approx(expected, rel=0.3)
    assert f"{100 * result.shares['scatter']:.0f} % is model-to-model scatter" in result.spread


def test_places_are_those_of_models_as_measured_and_not_of_their_recipes() -> None:
    result = catalog_densities(load_catalog(), load_reference("qwen1.5", "hellaswag")).headline
    mine, others = result.subset(np.arange(3)), result.subset(np.arange(3, len(result)))
    place = rank(mine, others).table
    wild = [dataclasses.replace(part, model_draws=part.model_draws * 100) for part in (mine, others)]
    pd.testing.assert_frame_equal(rank(*wild).table, place)


def test_a_trend_reads_the_measurement_and_counts_the_scatter_once() -> None:
    """Models scatter around the trend's line anyway: its residuals hold what the intervals of densities add."""
    result = catalog_densities(load_catalog(), load_reference("qwen1.5", "hellaswag"))
    data = TrendData.from_density(result)
    kept = [result.table["model"].tolist().index(name) for name in data.model]
    assert data.draws is not None
    np.testing.assert_array_equal(data.draws, result.draws[:, kept])
    wild = dataclasses.replace(result, model_draws=result.model_draws * 100)
    np.testing.assert_array_equal(TrendData.from_density(wild).draws, data.draws)


def test_references_and_skills_say_where_a_score_was_measured_otherwise(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    rows = [f"Mine-7B,7e9,2024-05-01,{name},0.55,0,acc" for name in ("mmlu", "hellaswag", "arc_challenge")]
    table.write_text("model,params,released,benchmark,score,shots,metric\n" + "\n".join(rows) + "\n")
    done = densing("density", "--references", "qwen1.5,llama", "--benchmark", "mmlu", "--scores", str(table))
    assert done.returncode == 3 and "differs" in done.stdout
    done = densing("density", "--skills", "--catalog", str(table), "--json")
    mine = [row for row in printed(done.stdout) if row["model"] == "Mine-7B"]
    assert done.returncode == 3 and {row["protocol"] for row in mine} == {"differs"}
    everyone = compare_references(load_catalog())
    assert "olmo-ladder" not in everyone.results, "every score of the catalog was measured differently from that ladder"
    assert any("olmo-ladder" in note.message and "differently" in note.message for note in everyone.notes)


def test_rank_correlation_is_that_of_scipy_and_a_bound_has_no_rank() -> None:
    found = compare_references(load_catalog(), ["qwen1.5", "llama"], "mmlu")
    first, second = (result.table[result.table["bound"].eq("")] for result in found.results.values())
    both = first.merge(second, on="model")
    expected = stats.spearmanr(both["density_x"], both["density_y"]).statistic
    row = found.correlation.iloc[0]
    assert (row["models"], row["spearman"]) == (len(both), pytest.approx(expected))
    assert found.table["rank"].isna().equals(found.table["bound"].ne(""))
    densest = found.table[found.table["rank"].eq(1)]
    assert len(densest) == 2
    for row in densest.itertuples():
        values = found.results[row.reference].table
        assert row.density == values.loc[values["bound"].eq(""), "density"].max()


def test_values_do_not_compare_across_references() -> None:
    """The three values of Llama-3.1-8B that an audit took off three references, all of them ``ok``."""
    found = compare_references(load_catalog(), ["qwen1.5", "qwen2.5", "llama"])
    value = found.wide().loc["Llama-3.1-8B"]
    assert value.to_dict() == pytest.approx({"qwen1.5": 1.38, "qwen2.5": 0.36, "llama": 7.8}, rel=0.02)


def test_references_that_read_nothing_are_named_and_unknown_ones_refused() -> None:
    found = compare_references(load_catalog(), benchmark="mmlu")
    left = {note.details["reference"]: note.message for note in found.notes if note.code == "ruler-left-out"}
    assert "near chance" in left["pythia"] and "densing-cpu" in left and "olmo-ladder" in left
    assert list(found.results) == ["qwen1.5", "qwen2.5", "llama"]
    with pytest.raises(UnknownNameError, match=r"qwen15"):
        compare_references(load_catalog(), ["qwen15"], "mmlu")
    with pytest.raises(InputError, match="near chance"):
        compare_references(load_catalog(), ["pythia"], "mmlu")


def test_the_command_prints_values_ranks_and_their_correlation(tmp_path: Path) -> None:
    mine = str(tmp_path / "mine.csv")
    lines = [f"M{at},{3 + at}e9,2024-05-0{at + 1},mmlu,{0.5 + 0.05 * at}" for at in range(4)]
    Path(mine).write_text("\n".join(["model,params,released,benchmark,score", *lines]) + "\n")
    done = densing("density", "--references", "qwen1.5,llama", "--benchmark", "mmlu", "--scores", mine, "--json")
    assert done.returncode == 0, done.stderr
    answer = printed(done.stdout)
    assert [model["model"] for model in answer["models"]] == ["M0", "M1", "M2", "M3"]
    assert {reading["rank"] for model in answer["models"] for reading in model["rulers"].values()} <= {1, 2, 3, 4, None}
    assert answer["rank_correlation"][0]["spearman"] == pytest.approx(1.0)
    one = densing("density", "--benchmark", "mmlu", "--scores", mine)
    assert "Across references, compare ranks only" in one.stderr and "--references all" in one.stderr
    refused = densing("density", "--references", "all", "--skills")
    assert refused.returncode == 2 and "--skills" in refused.stderr


def covered(share: float, looks: int) -> None:
    """Within 93 to 97 %, and with the small budget within 3.3 binomial standard errors of that."""
    margin = 0.0 if FULL else 3.3 * math.sqrt(0.05 * 0.95 / looks)
    assert 0.93 - margin <= share <= 0.97 + margin, share


def worlds(benchmarks: list[str], count: int, **options: float) -> Iterator[tuple[np.ndarray, list[DensityResult]]]:
    rng = np.random.default_rng(20261122)
    for number in range(count * (20 if FULL else 1)):
        yield world(rng, benchmarks, seed=number, **options)


@pytest.mark.slow
def test_seven_benchmarks_average_their_noise_out() -> None:
    """The measurement's interval covers, and is as wide as draws made here without any of our seeds."""
    rng = np.random.default_rng(1)
    held, ours, independent = [], [], []
    for truth, read in worlds(BENCHMARKS, 20):
        combined = combine_results(read, read[0].reference)
        inside = combined.table["bound"].eq("").to_numpy()
        held.append(holds(combined, truth))
        ours.append(width(combined.table[inside]))
        logs = []
        for result in read:
            table = result.table.set_index("model").loc[combined.table["model"][inside]]
            fit = result.reference.fit
            noisy = table["score"].to_numpy() + SE * rng.standard_normal((len(fit.draws), int(inside.sum())))
            logs.append(np.log(LOGISTIC.invert(rng.permutation(fit.draws)[:, None, :], noisy)[0]))
        low, high = np.quantile(np.mean(np.clip(logs, math.log(1e8), math.log(1e12)), axis=0), [0.025, 0.975], axis=0)
        independent.append(float(np.median(high - low)))
    assert np.mean(ours) == pytest.approx(np.mean(independent), rel=0.1)
    covered(float(np.mean(held)), len(held) * 4)  # eight targets share their curves: about four looks


@pytest.mark.slow
def test_the_recipes_interval_covers_models_that_scatter_and_the_measured_one_does_not() -> None:
    held, measured = [], []
    for truth, (result,) in worlds(BENCHMARKS[:1], 75, scatter=SCATTER):
        held.append(holds(result, truth, "_recipe"))
        measured.append(holds(result, truth))
    covered(float(np.mean(held)), len(held) * 4)
    assert np.mean(measured) < 0.9


@pytest.mark.slow
def test_the_measured_interval_covers_the_size_that_the_true_curve_gives_the_models_true_score() -> None:
    """Members and targets scatter; what is read is where this model's own score lies on the recipe's curve."""
    rng, held = np.random.default_rng(17), []
    for seed in range(600 if FULL else 75):
        reference = toy_reference(rng, "mmlu", SCATTER * rng.standard_normal(len(SIZES)))
        size = np.exp(rng.uniform(math.log(1e9), math.log(60e9), len(TARGETS)))
        own = curve(size) + SCATTER * rng.standard_normal(len(TARGETS))
        truth = LOGISTIC.invert(TRUTH, own)[0] / 5e9
        held.append(
            holds(estimate_density(rows(own + SE * rng.standard_normal(len(own))), reference, seed=seed), truth)
        )
    covered(float(np.mean(held)), len(held) * 4)


@pytest.mark.slow
@pytest.mark.parametrize("common", [0.0, 0.5])
def test_the_combined_interval_covers_models_that_scatter(common: float) -> None:
    held, measured = [], []
    for truth, read in worlds(BENCHMARKS, 12, scatter=SCATTER, common=common):
        combined = combine_results(read, read[0].reference)
        held.append(holds(combined, truth, "_recipe"))
        measured.append(holds(combined, truth))
    covered(float(np.mean(held)), len(held) * 2)
    assert np.mean(measured) < 0.93
