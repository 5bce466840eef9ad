"""The references: what is shipped, what it rests on, and what is refused.

Golden values of the OLMo ladder are the authors' printed actuals and predictions (allenai/OLMo-ladder at 67a3f440).
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core import Note, Table, read_table
from densing.core.errors import ArtefactError, InputError, UnavailableError, UnknownNameError
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.fit import LawFit, fit_law
from densing.scores.laws import TwoStep
from densing.scores.references import (
    Reference,
    available_benchmarks,
    build_reference,
    family_names,
    get_family,
    ladder,
    ladder_misses,
    library,
    load_ladder,
    load_reference,
    stale_fits,
)
from densing.scores.references.families import (
    Family,
    _count,
    group_members,
    ladder_members,
    reference_members,
    target_scores,
)
from densing.scores.references.ladder import get_ladder, ladder_data, load_authors
from densing.scores.references.library import build_all, buildable_benchmarks, ladder_reference
from densing.scores.references.reference import from_fit, loss_reference
from tests.support import folders
from tests.support.frozen import changeable

ONE_STEP = ("pythia", "qwen1.5", "qwen2.5", "llama")


@pytest.mark.parametrize("name", [*ONE_STEP, "olmo-ladder", "densing-cpu"])
def test_every_family_ships_its_mean_and_single_benchmarks(name: str) -> None:
    benchmarks = available_benchmarks(name)
    assert benchmarks[0] == "mean"
    assert len(benchmarks) >= 5
    for benchmark in benchmarks:
        reference = load_reference(name, benchmark)
        assert (reference.name, reference.benchmark) == (name, benchmark)
        assert len(reference.fit.draws) == 1000
        assert reference.fit.meta["licence"]
        assert len(reference.points) >= 5


@pytest.mark.slow
def test_shipped_fits_are_those_of_the_shipped_catalog() -> None:
    assert stale_fits(load_catalog()) == []


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [("qwen1.5", "mmlu"), ("llama", "mean"), ("olmo-ladder", "hellaswag"), ("densing-cpu", "mean")],
)
def test_a_refit_reproduces_the_shipped_parameters_and_draws(name: str, benchmark: str) -> None:
    shipped = load_reference(name, benchmark).fit
    fresh = build_reference(load_catalog(), name, benchmark).fit
    np.testing.assert_allclose(fresh.theta, shipped.theta, rtol=1e-5)
    np.testing.assert_allclose(np.median(fresh.draws, axis=0), np.median(shipped.draws, axis=0), rtol=1e-3)


def test_members_come_from_one_evaluator_and_the_family() -> None:
    reference = load_reference("qwen1.5", "mmlu")
    assert reference.points["model"].tolist() == list(get_family("qwen1.5").models)
    assert reference.evaluator == "obsscaling"
    assert load_reference("qwen2.5", "math").evaluator == "swallow"
    assert load_reference("llama", "bbh").evaluator == "opencompass"


def test_mean_holds_scales_only_and_says_which() -> None:
    benchmarks = load_reference("qwen1.5").benchmarks
    assert "mmlu" in benchmarks
    assert not {"truthfulqa", "ifeval", "musr"} & set(benchmarks)


def test_the_papers_own_family_is_described_and_refused() -> None:
    assert "densing-paper" in family_names()
    with pytest.raises(UnavailableError, match=r"no published losses.*828M.*densing fit TABLE --law two-step"):
        load_reference("densing-paper")


def test_chance_level_and_non_scales_are_refused() -> None:
    with pytest.raises(UnavailableError, match="near chance on mmlu"):
        load_reference("pythia", "mmlu")
    with pytest.raises(UnavailableError, match="not a capability scale"):
        load_reference("qwen1.5", "truthfulqa")


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'qwen1\.5'"):
        load_reference("qwen15")
    with pytest.raises(UnknownNameError, match="did you mean 'mmlu'"):
        load_reference("qwen1.5", "mmluu")
    for task in ("gsm8k", "no-task"):
        with pytest.raises(UnknownNameError, match="olmo-ladder"):
            load_reference("olmo-ladder", task)


def test_tokens_move_a_two_step_reference_only() -> None:
    less, more = (load_reference("olmo-ladder", "hellaswag", tokens=d) for d in (1e12, 5e12))
    at = [float(r.fit.law.invert(r.fit.theta, 0.6, **r.given)[0]) for r in (less, more)]
    assert at[0] > at[1], "with more tokens a smaller reference model reaches the score"
    with pytest.raises(InputError, match="one-step"):
        load_reference("qwen1.5", "mmlu", tokens=1e12)
    with pytest.raises(InputError, match="not a token count"):
        load_reference("olmo-ladder", "mean", tokens=5)


def test_ladder_holds_out_the_targets_and_shows_both_misses() -> None:
    table = load_ladder()
    held_out = table[table["held_out"].astype(bool)]
    assert sorted(held_out["run"].unique()) == ["OLMo-2-13B", "OLMo-2-7B"]
    reference = load_reference("olmo-ladder", "hellaswag")
    assert reference.fit.domain["params"][1] < 2e9, "no target entered the fit"
    misses = ladder_misses(reference.fit, ("hellaswag",)).set_index(["target", "quantity"])
    row = misses.loc[("OLMo-2-13B", "accuracy")]
    assert row["actual"] == pytest.approx(0.831906, abs=1e-6)
    assert row["authors_prediction"] == pytest.approx(0.853036, abs=1e-6)
    assert abs(row["relative_miss"]) < 0.05
    assert row["relative_miss"] == pytest.approx(row["predicted"] / row["actual"] - 1)


def test_authors_actuals_agree_with_our_table_of_runs() -> None:
    authors = load_authors().drop_duplicates(["task", "quantity"])
    runs = load_ladder()
    runs = runs[runs["run"] == "OLMo-2-13B"].set_index("task")
    for row in authors.itertuples():
        assert runs.loc[row.task, row.quantity] == pytest.approx(row.actual, abs=2e-6)


def test_a_users_two_step_fit_becomes_a_reference(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    params, ratio = np.meshgrid(np.geomspace(5e6, 8e8, 6), [10.0, 20.0, 60.0])
    size, tokens = params.ravel(), (params * ratio).ravel()
    loss = 60 * size**-0.25 + 200 * tokens**-0.25
    score = 0.25 + 0.6 / (1 + np.exp(6 * (loss - 1.2)))
    noisy = loss * np.exp(0.002 * rng.standard_normal(len(loss)))
    fit = fit_law("two-step", {"params": size, "tokens": tokens, "loss": noisy}, score, bootstrap=50, scheme="residual")
    path = tmp_path / "reference.json"
    path.write_text(fit.to_json(), encoding="utf-8")
    reference = load_reference(str(path), "mmlu")
    assert (reference.name, reference.benchmark, reference.given) == ("reference", "mmlu", {"tokens": 1e12})
    size_at, status = reference.fit.law.invert(reference.fit.theta, 0.5, **reference.given)
    loss_needed = 1.2 + math.log(0.6 / (0.5 - 0.25) - 1) / 6
    expected = (60 / (loss_needed - 200 * (1e12) ** -0.25)) ** 4
    assert str(status) == "ok"
    assert float(size_at) == pytest.approx(expected, rel=0.1)


def test_notes_on_the_catalogs_protocol_are_dropped_and_no_others() -> None:
    codes = ("few-points", "protocol-differs", "stopped", "protocol-differs")
    notes = tuple(Note(code, "warning", str(number)) for number, code in enumerate(codes))
    reference = replace(load_reference("qwen1.5", "mmlu"), notes=notes)
    assert reference.without_protocol_notes().notes == notes[::2]


@pytest.mark.parametrize("name", ["pythia", "olmo-ladder", "densing-paper", "joint"])
def test_what_can_be_fitted_is_what_is_shipped(name: str) -> None:
    assert set(buildable_benchmarks(load_catalog(), get_family(name))) == set(available_benchmarks(name))


def test_damaged_fits_are_refused_with_their_path(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ArtefactError, match=r"broken\.json"):
        load_reference(str(path))
    with pytest.raises(InputError, match="cannot read"):
        load_reference(str(tmp_path / "absent.json"))
    loss_fit = fit_law("power", {"params": [1e8, 1e9, 1e10]}, [3.0, 2.5, 2.1], bootstrap=0)
    path.write_text(loss_fit.to_json(), encoding="utf-8")
    with pytest.raises(UnavailableError, match="gives loss"):
        load_reference(str(path))


def test_shipped_files_are_plain_json_of_the_current_schema() -> None:
    folder = folders.ROOT / "reference_fits"
    for path in folder.glob("*/*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        assert LawFit.from_json(json.dumps(document)).meta["reference"]["name"] == path.parent.name


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.scores.references") == set()


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        ("qwen1.5", "mmlu"),
        ("llama", "mean"),
        ("qwen2.5", "code"),
        ("olmo-ladder", "hellaswag"),
        ("densing-cpu", "facts"),
    ],
)
def test_a_refit_says_of_itself_what_the_shipped_one_does(name: str, benchmark: str) -> None:
    catalog, shipped = load_catalog(), load_reference(name, benchmark)
    fresh = build_reference(catalog, name, benchmark)
    about, written = (
        {key: value for key, value in each.fit.meta.items() if key != "reference"} for each in (fresh, shipped)
    )
    assert about == written
    about, written = (json.loads(each.fit.to_json())["meta"]["reference"] for each in (from_fit(fresh.fit), shipped))
    # Errors of points are least squares, whose last digits are the library's.
    errors = [[point.pop("score_se", None) for point in each["points"]] for each in (about, written)]
    assert about == written
    assert errors[0] == pytest.approx(errors[1], rel=1e-9)
    options = [{key: value for key, value in each.fit.options.items() if key != "steps"} for each in (fresh, shipped)]
    assert options[0] == options[1]
    assert (fresh.fit.x.keys(), fresh.fit.domain) == (shipped.fit.x.keys(), shipped.fit.domain)
    codes = [[note.code for note in each.notes if not note.code.startswith("bootstrap")] for each in (fresh, shipped)]
    assert codes[0] == codes[1]
    # Each stream of random numbers is named: the same noise, draw by draw.
    same = np.isclose(fresh.fit.draws, shipped.fit.draws, rtol=1e-3).all(axis=1)
    assert same.mean() > 0.97


def rows(
    family: str, sizes: list[float], scores: dict[str, list[float | None]], evaluator: str
) -> list[dict[str, object]]:
    return [
        {"model": f"{family}-{size:g}B", "family": family, "organisation": family, "params": size * 1e9,
         "released": "2024-01-01", "benchmark": benchmark, "score": score, "evaluator": evaluator}
        for benchmark, values in scores.items() for size, score in zip(sizes, values, strict=True) if score is not None
    ]  # fmt: skip


def small() -> tuple[Catalog, Family]:
    """Six sizes; one evaluator measured four of them on bbh, five at chance on mmlu, and a mean of two benchmarks."""
    sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    table = rows("Toy", sizes, {
        "gsm8k": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        "math": [None, 0.05, 0.1, 0.2, 0.3, 0.4],
        "bbh": [0.3, 0.4, 0.5, 0.6, None, None],
        "mmlu": [0.25, 0.26, 0.25, 0.27, 0.28, 0.349],
        "arc_challenge": [0.25, 0.3, 0.3, 0.3, 0.3, 0.36],
    }, "first")  # fmt: skip
    table += rows("Toy", sizes, {"bbh": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7], "gsm8k": [0.2] * 6}, "second")
    table += rows("Other", sizes, {"bbh": [0.3] * 6, "gsm8k": [0.9] * 6}, "first")
    catalog = load_catalog(pd.DataFrame(table), embedded=False)
    models = tuple(f"Toy-{size:g}B" for size in sizes)
    return catalog, Family("toy", "Toy", "one-step", models, ("first", "second"))


def test_members_are_those_of_the_first_evaluator_with_five_sizes() -> None:
    catalog, family = small()
    assert (_count(catalog, family, "first", "bbh"), _count(catalog, family, "first", "math")) == (4, 5)
    assert _count(catalog, family, "nobody", "bbh") == 0
    math_ = reference_members(catalog, family, "math")
    assert (math_.evaluator, math_.benchmarks, math_.floor) == ("first", ("math",), 0.0)
    assert math_.points["params"].tolist() == [2e9, 4e9, 8e9, 16e9, 32e9]
    assert math_.points["score"].tolist() == [0.05, 0.1, 0.2, 0.3, 0.4]
    assert not math_.points["held_out"].any()
    # Four sizes are too few: the next evaluator's count.
    assert reference_members(catalog, family, "bbh").evaluator == "second"
    assert reference_members(catalog, family, "gsm8k").points["score"].max() == 0.6
    with pytest.raises(
        UnavailableError, match=r"sits near chance on mmlu at every size \(best 0\.349, chance 0\.250\)"
    ):
        reference_members(catalog, family, "mmlu")
    # More than a tenth above chance is a signal.
    assert reference_members(catalog, family, "arc_challenge").floor == 0.25
    with pytest.raises(UnavailableError, match="fewer than 5 sizes with a usable piqa score"):
        reference_members(catalog, family, "piqa")


def test_a_mean_takes_the_first_evaluators_benchmarks_and_a_skill_those_of_the_first_that_measured_it() -> None:
    catalog, family = small()
    order = [name for name in catalog.benchmarks["id"] if name in ("gsm8k", "math", "arc_challenge")]
    assert group_members(catalog, family) == ("first", tuple(order))
    assert group_members(catalog, family, "mathematics") == ("first", tuple(n for n in order if n != "arc_challenge"))
    both = reference_members(catalog, family, "mathematics")
    # Models that have both benchmarks, and the mean of their scores and of the chance levels.
    assert both.points["model"].tolist() == [f"Toy-{size}B" for size in (2, 4, 8, 16, 32)]
    assert both.points["score"].tolist() == pytest.approx([0.125, 0.2, 0.3, 0.4, 0.5])
    mean = reference_members(catalog, family, "mean")
    assert mean.floor == pytest.approx(0.25 / 3) and mean.points["score"].iloc[-1] == pytest.approx(
        (0.6 + 0.4 + 0.36) / 3
    )
    with pytest.raises(UnavailableError, match="no usable code benchmark"):
        group_members(catalog, family, "code")
    elsewhere = dataclasses.replace(family, evaluators=("nobody", "second"))
    assert group_members(catalog, elsewhere, "reasoning")[0] == "second"
    with pytest.raises(UnavailableError, match="no usable mean benchmark"):
        group_members(catalog, elsewhere)


def test_targets_are_read_from_the_comparability_series() -> None:
    catalog = load_catalog()
    assert set(target_scores(catalog, "obsscaling", ("mmlu", "gsm8k"))["evaluator"]) == {"obsscaling"}
    scores = catalog.scores
    series = scores.loc[scores["evaluator"].eq("obsscaling") & scores["benchmark"].eq("mmlu"), "series"].unique()
    assert len(series) == 1
    found = target_scores(catalog, "obsscaling", ("mmlu",))
    assert set(found["model"]) == set(
        scores.loc[scores["series"].eq(series[0]) & scores["benchmark"].eq("mmlu"), "model"]
    )
    own, _ = small()
    alone = target_scores(own, "first", ("gsm8k",))
    assert len(alone) == 12 and set(alone["score"]) > {0.1, 0.9}


def test_a_ladder_is_read_beside_the_evaluator_nearest_to_it() -> None:
    catalog, ladder = load_catalog(), get_ladder("olmo-ladder")
    assert ladder_members(catalog, ladder, "mean") == ("obsscaling", ("arc_challenge", "hellaswag"))
    assert ladder_members(catalog, ladder, "piqa")[1] == ("piqa",)
    assert ladder_members(catalog, get_ladder("densing-cpu"), "facts") == ("", ("facts",))


def test_runs_are_averaged_where_they_have_every_task() -> None:
    table = pd.DataFrame(
        [("a", 100, 10, "x", 2.0, 0.2, "final", False), ("a", 100, 10, "y", 4.0, 0.6, "final", False),
         ("b", 200, 20, "x", 1.0, 0.5, "final", False),
         ("a", 100, 5, "x", 3.0, 0.1, "interim", False), ("a", 100, 5, "y", 5.0, 0.3, "interim", False),
         ("t", 900, 90, "x", 0.5, 0.8, "final", True), ("t", 900, 90, "y", 0.7, 1.0, "final", True)],
        columns=["run", "params_non_embedding", "tokens", "task", "bits_per_byte", "accuracy", "stage", "held_out"],
    )  # fmt: skip
    data = ladder_data(table, ("x", "y"))
    columns = ["run", "params_non_embedding", "tokens", "bits_per_byte", "accuracy"]
    assert data.final[columns].to_numpy().tolist() == [["a", 100, 10, 3.0, 0.4]]
    assert data.interim[columns].to_numpy().tolist() == [["a", 100, 5, 4.0, 0.2]]
    assert data.held_out[columns].to_numpy().tolist() == [["t", 900, 90, 0.6, 0.9]]
    assert ladder_data(table, ("x",)).final["run"].tolist() == ["a", "b"]
    for part in (data.final, data.interim, data.held_out):
        assert list(part) == ["run", "params_non_embedding", "tokens", "stage", "held_out", "bits_per_byte", "accuracy"]


def test_misses_are_the_predictions_of_both_steps_and_the_authors() -> None:
    fit = load_reference("olmo-ladder", "hellaswag").fit
    law, held_out = fit.law, ladder_data(load_ladder(), ("hellaswag",)).held_out
    x = {"params": held_out["params_non_embedding"].to_numpy(float), "tokens": held_out["tokens"].to_numpy(float)}
    assert isinstance(law, TwoStep)
    losses, scores = law.loss_law.predict(law.split(fit.draws)[0], x), law.predict(fit.draws, x)
    misses = ladder_misses(fit, ("hellaswag",), 0.8)
    for quantity, draws in (("bits_per_byte", losses), ("accuracy", scores)):
        found = misses[misses["quantity"] == quantity]
        assert found["target"].tolist() == held_out["run"].tolist()
        np.testing.assert_allclose(found[["lo", "hi"]].T, np.quantile(draws, [0.1, 0.9], axis=0))
        np.testing.assert_allclose(found["actual"], held_out[quantity])
    first = law.loss_law.predict(law.split(fit.theta)[0], x)
    np.testing.assert_allclose(misses.loc[misses["quantity"] == "bits_per_byte", "predicted"], first)
    printed = misses.set_index(["target", "quantity"])["authors_miss"]
    assert printed["OLMo-2-13B", "accuracy"] == pytest.approx(0.853036 / 0.831906 - 1, abs=1e-5)
    assert np.isnan(printed["OLMo-2-7B", "accuracy"])
    ninety = ladder_misses(fit, ("hellaswag",))
    assert (ninety["lo"] < misses["lo"]).all() and (ninety["hi"] > misses["hi"]).all()
    # Of a mean the authors say nothing.
    pair = load_reference("olmo-ladder").fit
    assert ladder_misses(pair, ("arc_challenge", "hellaswag"))["authors_prediction"].isna().all()


def test_a_mean_over_any_tasks_of_a_ladder_is_fitted() -> None:
    reference = ladder_reference("densing-cpu", ("facts", "skip"), draws=3, tokens=1e6)
    assert (reference.benchmark, reference.benchmarks, reference.evaluator) == ("facts+skip", ("facts", "skip"), "")
    assert reference.given == {"tokens": 1e6} and len(reference.fit.draws) == 3
    assert ladder_reference("densing-cpu", ("facts",), draws=2).given == {"tokens": 1_638_400.0}
    with pytest.raises(UnknownNameError, match="benchmark of reference densing-cpu"):
        ladder_reference("densing-cpu", ("facts", "mmlu"))


def test_the_loss_step_of_a_reference_keeps_its_runs_and_draws() -> None:
    reference = load_reference("olmo-ladder", "hellaswag")
    loss = loss_reference(reference)
    law = reference.fit.law
    assert isinstance(law, TwoStep) and loss.fit.law == law.loss_law
    np.testing.assert_array_equal(loss.fit.draws, law.split(reference.fit.draws)[0])
    np.testing.assert_array_equal(loss.fit.theta, law.split(reference.fit.theta)[0])
    assert set(loss.fit.domain) == {"params", "tokens"}
    fitted = ~reference.points["held_out"].astype(bool)
    np.testing.assert_allclose(loss.fit.y, reference.points.loc[fitted, "bits_per_byte"])
    np.testing.assert_allclose(loss.fit.residuals, np.log(loss.fit.y / loss.fit.predict(loss.fit.x)))
    np.testing.assert_array_equal(loss.points["score"], reference.points["bits_per_byte"])
    assert loss.fit.objective == reference.fit.options["steps"][0]["objective"]
    assert list(loss.protocols) == ["hellaswag"]
    assert loss_reference(replace(reference, evaluator="user")).protocols == {}
    with pytest.raises(InputError, match="only a two-step reference reads losses"):
        loss_reference(load_reference("llama"))


def user_fit(path: Path, **changes: object) -> str:
    size = np.geomspace(1e8, 1e11, 8)
    score = 0.25 + 0.5 / (1 + (4e9 / size) ** 0.9)
    fit = fit_law("logistic", {"params": size}, score, bootstrap=5, meta=changes.pop("meta", None))  # type: ignore[arg-type]
    path.write_text(replace(fit, **changes).to_json(), encoding="utf-8")  # type: ignore[arg-type]
    return str(path)


def test_a_users_fit_is_read_with_suspicion(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    reference = load_reference(user_fit(path, meta={"protocol": {"shots": 5}}), "mmlu")
    assert (reference.name, reference.title, reference.evaluator) == ("own", "the user's fit own", "user")
    assert reference.points["model"].tolist()[:2] == ["point 1", "point 2"] and not reference.points["held_out"].any()
    assert reference.given == {} and reference.protocol("mmlu").shots == 5 and reference.protocol("arc").shots is None
    with pytest.raises(InputError, match="no bootstrap draws"):
        load_reference(user_fit(path, draws=np.empty((0, 3))))
    for ends in ((0.0, 1e9), (2e9, 1e9), (-1.0, 1e9)):
        with pytest.raises(ArtefactError, match="is not a range of sizes"):
            load_reference(user_fit(path, domain={"params": ends}))
    assert load_reference(user_fit(path, domain={"params": (1e9, 1e9)})).fit.domain["params"] == (1e9, 1e9)
    with pytest.raises(ArtefactError, match=r"own\.json: \$\.meta\.reference.*; fit again"):
        load_reference(user_fit(path, meta={"reference": {"name": "x"}}))
    about = {**load_reference("llama").fit.meta["reference"], "protocols": {"mmlu": {"shots": "many"}}}
    with pytest.raises(ArtefactError, match=r"own\.json: \$\.meta\.reference: .*shots is 'many'.*; fit again"):
        load_reference(user_fit(path, meta={"reference": about}))
    with pytest.raises(ArtefactError, match=r"\$\.meta\.protocol is not an object"):
        load_reference(user_fit(path, meta={"protocol": [1]}))
    scores = fit_law(
        "sigmoid",
        {"loss": np.linspace(0.3, 1.1, 9)},
        0.25 + 0.5 / (1 + np.exp(9 * (np.linspace(0.3, 1.1, 9) - 0.7))),
        bootstrap=3,
    )
    path.write_text(scores.to_json(), encoding="utf-8")
    with pytest.raises(UnavailableError, match="gives score, not a score in parameters"):
        load_reference(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmarks": []}, "names no benchmark"),
        ({"points": [{"model": "x"}]}, "points or given do not belong"),
        ({"given": {"tokens": 1e12}}, "points or given do not belong"),
    ],
)
def test_a_description_that_is_not_the_laws_is_refused(change: dict[str, object], message: str) -> None:
    fit = load_reference("llama").fit
    damaged = replace(fit, meta={**fit.meta, "reference": {**fit.meta["reference"], **change}})
    with pytest.raises(ArtefactError, match=message):
        from_fit(damaged)
    two = load_reference("olmo-ladder").fit
    for given in ({"tokens": 0.0}, {}):
        with pytest.raises(ArtefactError, match="do not belong to law two-step"):
            from_fit(replace(two, meta={**two.meta, "reference": {**two.meta["reference"], "given": given}}))


@pytest.mark.parametrize(("tokens", "ok"), [(1e3, True), (999.0, False), (1e16, True), (1.1e16, False)])
def test_the_ends_of_a_token_count(tokens: float, ok: bool) -> None:
    reference = load_reference("olmo-ladder")
    if ok:
        assert reference.at_tokens(tokens).given == {"tokens": tokens}
    else:
        with pytest.raises(InputError, match="is not a token count"):
            reference.at_tokens(tokens)


def test_every_reference_is_written_below_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(catalog: Catalog, name: str, benchmark: str) -> Reference:
        built.append((name, benchmark))
        return load_reference(name, benchmark)

    monkeypatch.setattr(library, "build_reference", build)
    found = list(build_all(load_catalog(), tmp_path, ("olmo-ladder", "joint")))
    assert [(name, benchmark) for name, benchmark, _ in found] == built == [
        ("olmo-ladder", benchmark) for benchmark in ("mean", *get_ladder("olmo-ladder").tasks)
    ]  # fmt: skip
    for name, benchmark, path in found:
        assert path == tmp_path / name / f"{benchmark}.json"
        assert path.read_text(encoding="utf-8") == load_reference(name, benchmark).fit.to_json() + "\n"


def test_stale_fits_are_those_whose_data_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(catalog: Catalog, name: str, benchmark: str, draws: int) -> Reference:
        assert draws == 0
        if benchmark == "gsm8k":
            shipped = load_reference(name, benchmark)
            return replace(shipped, points=shipped.points.assign(score_se=1.01 * shipped.points["score_se"]))
        return load_reference(name, "mean" if benchmark == "mmlu" else benchmark)

    monkeypatch.setattr(library, "build_reference", build)
    assert sorted(stale_fits(load_catalog())) == sorted(
        f"{name}/{benchmark}"
        for name in family_names()
        for benchmark in available_benchmarks(name)
        if benchmark in ("gsm8k", "mmlu")
    )


def test_few_sizes_are_said() -> None:
    codes = {name: {note.code for note in load_reference(name).notes} for name in ONE_STEP}
    points = {name: len(load_reference(name).points) for name in ONE_STEP}
    assert all(("few-points" in codes[name]) == (points[name] <= 6) for name in ONE_STEP)
    assert {count <= 6 for count in points.values()} <= {True, False}


def test_a_description_counts_what_was_fitted() -> None:
    facts = load_reference("olmo-ladder", "hellaswag").describe()
    points = load_reference("olmo-ladder", "hellaswag").points
    assert facts["n_points"] == (~points["held_out"].astype(bool)).sum() < len(points)
    assert facts["given"] == {"tokens": 1e12} and set(facts["protocols"]) == {"hellaswag"}


@pytest.mark.parametrize(
    ("file", "table"), [("olmo_ladder.csv", ladder.LADDER), ("olmo_ladder_authors.csv", ladder.AUTHORS)]
)
def test_a_table_of_a_ladder_has_no_empty_cell(file: str, table: Table, tmp_path: Path) -> None:
    whole = pd.read_csv(ladder.DATA / file, dtype=str).head(3)
    for name in whole.columns:
        path = tmp_path / f"{name}.csv"
        whole.assign(**{name: [*whole[name][:2], None]}).to_csv(path, index=False)
        with pytest.raises(InputError, match=name):
            read_table(path, table)


def test_a_reference_is_built_by_names_of_its_choices() -> None:
    fresh = build_reference(catalog=load_catalog(), name="qwen1.5", benchmark="mmlu", draws=5, seed=1)
    assert fresh.benchmark == "mmlu" and len(fresh.fit.draws) == 5
