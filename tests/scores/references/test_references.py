"""The references: what is shipped, what it rests on, and what is refused.

Golden values of the OLMo ladder are the authors' printed actuals and predictions (allenai/OLMo-ladder at 67a3f440).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from densing.core import Note
from densing.core.errors import ArtefactError, InputError, UnavailableError, UnknownNameError
from densing.scores.catalog import load_catalog
from densing.scores.fit import LawFit, fit_law
from densing.scores.references import (
    available_benchmarks,
    build_reference,
    family_names,
    get_family,
    ladder_misses,
    load_ladder,
    load_reference,
    stale_fits,
)
from densing.scores.references.ladder import load_authors
from densing.scores.references.library import buildable_benchmarks
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
    with pytest.raises(UnknownNameError, match="olmo-ladder"):
        load_reference("olmo-ladder", "gsm8k")


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
