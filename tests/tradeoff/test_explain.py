"""On which items a model fails: planted words are found, noise is called noise, stores stay apart."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("sklearn")

import densing
from densing.cli import app
from densing.core import plain
from densing.report import build_explained
from densing.scores.evals import read_texts
from densing.tradeoff import Explained, explain_items, roc_auc
from tests.support.command import printed
from tests.support.explained_items import explained_run
from tests.support.folders import ROOT
from tests.support.report_frames import HOSTILE
from tests.support.report_pages import Page, built_for_everyone

FEW: dict[str, Any] = {"model": "weak", "against": "strong", "draws": 4}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("explained")
    return explained_run(folder / "one"), explained_run(folder / "two", first=240)


@pytest.fixture(scope="module")
def one(stores: tuple[Path, Path]) -> Explained:
    return explain_items([stores[0]], **FEW)


def test_the_planted_word_is_found_and_comes_out_again(one: Explained) -> None:
    first = one.weights.iloc[0]
    assert first["feature"] == "word: river" and first["weight"] > 2 and first["stable"] and first["fails"] > 0.6
    assert not one.weights["feature"].str.contains("subject|id:|task").any()
    assert one.auc_lo > 0.6 and one.auc_hi < 1 and 0.15 < one.held_out / one.items < 0.35
    assert "word: river" in repr(one) and "AUC on" in one.sentence
    # Of what is solved by the strong model, the weak one fails on what the store says it fails on.
    assert one.fails == round(one.items * one.fails / one.items) and one.stores == (one.stores[0],)
    assert json.loads(json.dumps(plain(one)))["weights"][0]["feature"] == "word: river"


def test_items_of_two_stores_stay_apart_and_the_bytes_are_beside_those_of_gathering(
    stores: tuple[Path, Path], one: Explained
) -> None:
    both = explain_items(list(stores), **FEW)
    assert both.stores == tuple(map(str, stores)) and both.items > 1.7 * one.items
    assert both.weights.iloc[0]["feature"] == "word: river"
    assert one.bytes == one.bytes_draws == 0 and "nothing had to travel" in one.moved
    assert 0 < both.bytes < both.bytes_draws
    # The other store's texts, and twelve bytes an entry of its features.
    texts, _ = read_texts(stores[1])
    assert abs(both.bytes_items - texts["bytes"].sum() / 2) < texts["bytes"].sum()
    assert both.bytes_features % 12 == 0 and "travelled" in both.moved
    assert len(both.history) == 3 and both.history[2] <= both.history[0]


def test_what_is_kept_is_stable_and_fitted_anew(stores: tuple[Path, Path], tmp_path: Path) -> None:
    store = explained_run(tmp_path / "two words", word="mill-stream", seed=5)
    every, kept = (explain_items([store], stable=choice, **FEW) for choice in (False, True))
    stable = set(every.weights["feature"][every.weights["stable"]])
    assert {"word: mill"} <= set(kept.weights["feature"]) <= stable < set(every.weights["feature"])
    assert kept.lam == every.lam and kept.items == every.items and kept.auc_lo > 0.6
    assert any(note.code == "kept-stable" and "4 draws more" in note.message for note in kept.notes)
    # Between stores the second fit and its draws travel too.
    both, again = (explain_items(list(stores), stable=choice, **FEW) for choice in (False, True))
    assert again.bytes > both.bytes and again.bytes_draws > 1.5 * both.bytes_draws


def test_nothing_stable_is_said_in_words(stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("densing.tradeoff.explain.STABLE", 1.1)
    result = explain_items([stores[0]], stable=True, **FEW)
    assert result.weights.empty and "tells them apart" in result.sentence and result.auc == 0.5


def test_answers_that_lie_apart_are_brought_together(tmp_path: Path, one: Explained) -> None:
    for model in ("weak", "strong"):
        explained_run(tmp_path / model, models=(model,))
    result = explain_items([tmp_path / "weak", tmp_path / "strong"], **FEW)
    assert result.stores == ("brought together",) and result.items == one.items and result.fails == one.fails
    assert [note.code for note in result.notes if note.code == "answers-apart"] == ["answers-apart"]
    assert result.weights["weight"].tolist() == pytest.approx(one.weights["weight"].tolist())


def test_an_item_in_two_stores_counts_once(stores: tuple[Path, Path], one: Explained, tmp_path: Path) -> None:
    shutil.copytree(stores[0], tmp_path / "copy")
    result = explain_items([stores[0], tmp_path / "copy"], **FEW)
    assert result.items == one.items
    assert "480 items" not in result.sentence and any(note.code == "items-twice" for note in result.notes)


def test_the_other_question_is_asked_of_all_items(stores: tuple[Path, Path], one: Explained) -> None:
    every = explain_items([stores[0]], among="all", **FEW)
    assert every.items == 240 > one.items and every.fails == one.fails
    assert "strong solves those" in every.sentence


def test_without_a_rule_it_says_that_chance_would_do(tmp_path: Path) -> None:
    store = explained_run(tmp_path / "noise", word="absent-word", seed=5)
    for samples in store.rglob("samples_*.jsonl"):
        assert "absent-word" in samples.read_text(encoding="utf-8")
    result = explain_items([store], model="strong", against="weak", draws=4)
    assert len(result.weights) == 0 or result.auc_lo <= 0.5 or not result.weights["stable"].all()
    assert {note.code for note in result.notes} & {"no-weights", "chance", "unstable"}


def test_densities_are_of_held_out_items_on_either_side_of_the_score(tmp_path: Path) -> None:
    result = explain_items([explained_run(tmp_path / "run", task="piqa")], **FEW)
    table = result.slices[result.slices["quantity"].eq("score")].set_index(["slice", "model"])
    likely, unlikely = table.loc["A likely to fail"], table.loc["A unlikely to fail"]
    assert likely.loc["weak", "score"] < 0.5 < unlikely.loc["weak", "score"]
    assert likely.loc["weak", "n_items"] + unlikely.loc["weak", "n_items"] < 0.4 * 240
    assert set(table["status"]) <= {"ok", "below_floor", "above_ceiling", "extrapolated"}
    # A protocol other than the reference's is a doubt of the densities, and no error of the weights.
    assert {note.severity for note in result.notes} <= {"info", "warning"}
    unknown = explain_items([explained_run(tmp_path / "toy")], **FEW)
    assert unknown.slices.empty and any(note.code == "slice-without-density" for note in unknown.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "week"}, "unknown model with stored items 'week'; did you mean 'weak'"),
        ({"model": "strong"}, "strong against itself"),
        ({"nnz": 0}, "nnz is 0; give from 1"),
        ({"held_out": 1.0}, "held_out is 1; give from 0.05 to 0.9"),
        ({"among": "some"}, "unknown choice of items 'some'"),
        (
            {"held_out": 0.9, "among": "all", "model": "strong", "against": "weak"},
            "items on which strong fails are",
        ),
    ],
)
def test_what_is_wrong_is_said(stores: tuple[Path, Path], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(densing.DensingError, match=message):
        explain_items([stores[0]], **{**FEW, **changes})


def test_a_store_without_documents_is_named(tmp_path: Path, stores: tuple[Path, Path]) -> None:
    shutil.copytree(stores[0], tmp_path / "bare")
    for samples in (tmp_path / "bare").rglob("samples_*.jsonl"):
        samples.unlink()
    with pytest.raises(densing.DensingError, match="no documents stored there"):
        read_texts(tmp_path / "bare")


def test_texts_come_from_documents_and_else_from_prompts(tmp_path: Path) -> None:
    from tests.support.eval_files import choice_sample, write_results

    told = choice_sample(0, [-1.0, -2.0], 0, acc=1.0)
    told["doc"] = {"question": {"stem": "What is it?"}, "choices": ["a", "b"], "level": 3, "long": "x" * 50}
    silent = choice_sample(1, [-1.0, -2.0], 0, acc=1.0, context="An example.\n\nThe question?")
    # A document that holds its whole prompt, as those of olmo_ladder do: examples are no words of the item.
    prompted = choice_sample(2, [-1.0, -2.0], 0, acc=1.0, context="An example.\n\nThe question?")
    prompted["doc"] = {"context": "An example.\n\nThe question?", "passage": "One.\n\nTwo."}
    write_results(tmp_path, {"toy": [told, silent, prompted]})
    texts, notes = read_texts(tmp_path)
    assert texts["text"].tolist() == [
        "What is it?\na\nb\n" + "x" * 50, "The question?\n answer 0\n answer 1", "The question?\nOne.\n\nTwo."
    ]  # fmt: skip
    assert texts["fields"].tolist()[:2] == [{"level": "3"}, {"id": "1"}] and not notes


def test_the_area_under_the_curve_is_scikit_learns_and_its_interval_covers() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    truth, covered = 0.7602, 0  # P(x > y) for x ~ N(1, 1), y ~ N(0, 1): Phi(1 / sqrt(2))
    for _ in range(300):
        labels = np.arange(80) % 3 == 0
        scores = np.round(rng.normal(labels, 1.0), 2)
        auc, lo, hi = roc_auc(scores, labels)
        assert auc == pytest.approx(roc_auc_score(labels, scores))
        covered += lo <= truth <= hi
    assert 0.92 <= covered / 300 <= 0.98


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    store = explained_run(tmp_path / "run")
    for samples in store.rglob("samples_*.jsonl"):
        rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            bad = "river" in row["doc"]["question"]
            row["doc"] = {"question": "x", "kind": "<script>alert(1)</script>" if bad else HOSTILE}
        samples.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # The store vouches for its files; lm-eval's own folder does not.
    plain_folder = tmp_path / "plain"
    for number, unit in enumerate(sorted((store / "units").iterdir())):
        target = plain_folder / f"model{number}"
        target.mkdir(parents=True)
        for file in [*unit.rglob("samples_*.jsonl"), *unit.rglob("results_*.json")]:
            content = file.read_text(encoding="utf-8").replace("models/tiny", f"models/{unit.name.split('__')[0]}")
            (target / file.name).write_text(content, encoding="utf-8")
    result = explain_items([plain_folder], model="models/weak", against="models/strong", draws=2)
    assert result.weights.iloc[0]["feature"] in ("kind: <script>alert(1)</script>", f"kind: {HOSTILE}")
    shown = Page(build_explained(result, tmp_path / "page.html").read_text(encoding="utf-8"))
    built_for_everyone(shown)
    assert not shown.all("img") and len(shown.all("script")) == 1 + 1
    assert result.weights_listing().cells()[0][0] in " ".join(shown.words)
    text = build_explained(result, tmp_path / "page.md").read_text(encoding="utf-8")
    assert "<script" not in text and "<img" not in text and "&lt;" in text


def test_the_command_writes_what_the_library_gives(stores: tuple[Path, Path], one: Explained, tmp_path: Path) -> None:
    def run(*more: str) -> Any:
        arguments = ["results", "explain", str(stores[0]), "--model", "weak", "--against", "strong", "--draws", "4"]
        result = CliRunner().invoke(app, [*arguments, *more])
        assert result.exit_code == 0, (result.output, result.exception)
        return result

    answer = printed(run("--json").stdout)
    assert answer["sentence"] == one.sentence and answer["auc"] == pytest.approx(one.auc)
    shown = run("--out", str(tmp_path / "w.csv"), "--html", str(tmp_path / "w.html"), "--page", str(tmp_path / "w.md"))
    assert "word: river" in shown.stdout
    assert (tmp_path / "w.csv").read_text(encoding="utf-8").startswith("feature,weight,stability,stable,items,fails")
    assert "word: river" in (tmp_path / "w.md").read_text(encoding="utf-8")
    page = Page((tmp_path / "w.html").read_text(encoding="utf-8"))
    assert [section["id"] for section in page.all("section")] == ["headline", "weights", "notes", "versions"]


def test_the_page_says_in_its_first_line_that_a_model_guesses() -> None:
    from benchmarks.explain import limits

    page = (ROOT / "docs" / "results" / "explain.md").read_text("utf-8")
    names = ("smollm2-135m", "d24-s0-61440")
    found = re.search(r"smollm2-135m solves (\d+) % and d24-s0-61440, [^,]*, (\d+) %; guessing solves (\d+) %", page)
    assert found is not None
    first, second, guessed = (int(number) / 100 for number in found.groups())
    assert page.splitlines()[2] == limits(dict(zip(names, (first, second), strict=True)), guessed)
    assert limits({"a": 0.44, "b": 0.60}, 0.28) == limits({"a": 0.01}, 0.0) == ""
