"""Whose score counts where a catalog or a table has several, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from densing.core.errors import InputError
from densing.scores.catalog import OTHER_PROTOCOL, WRONG, load_catalog
from densing.scores.density import skill_densities
from densing.scores.density.targets import NAMED, _adopt, _measured_already, _namesakes, _pool, _second_evaluators
from densing.scores.references import load_reference

CELL = ["model", "benchmark"]


def scores(*rows: tuple[str, str, str, float]) -> pd.DataFrame:
    """Return scores of ``model, benchmark, evaluator, score``."""
    return pd.DataFrame(rows, columns=[*CELL, "evaluator", "score"])


def test_scores_beside_those_of_the_references_evaluator_are_named_with_the_widest_gap_first() -> None:
    used = scores(("a", "mmlu", "ref", 0.5), ("b", "mmlu", "ref", 0.6), ("c", "mmlu", "ref", 0.7))
    own = scores(("a", "mmlu", "user", 0.52), ("b", "mmlu", "user", 0.5))
    reference: Any = SimpleNamespace(evaluator="ref")
    note = _measured_already(used, own, reference)
    assert note.message.startswith(
        "your 2 scores of models that the reference's own evaluator measured (ref) are not read, so that none counts "
        "twice: b on mmlu (0.5, there 0.6), a on mmlu (0.52, there 0.5)"
    )
    assert [row["gap"] for row in note.details["rows"]] == pytest.approx([-0.1, 0.02])
    assert "your 1 score of models" in _measured_already(used, own[:1], reference).message
    assert "(ref) is not read" in _measured_already(used, own[:1], reference).message


@pytest.mark.parametrize("count", [1, NAMED, NAMED + 2])
def test_what_a_second_evaluator_found_is_said_for_a_few_and_counted_for_the_rest(count: int) -> None:
    used = scores(*((f"m{i}", "mmlu", "one", 0.5) for i in range(count)))
    spare = scores(*((f"m{i}", "mmlu", "two", 0.5 - 0.01 * (i + 1)) for i in range(count)))
    note = _second_evaluators(used, spare)
    last = f"m{count - 1} on mmlu: 0.5 (one) is used, {0.5 - 0.01 * count:g} (two) is not, {-0.01 * count:+.3g}"
    assert note.message.startswith(f"several evaluators scored one model: {last}")
    assert note.message.count("is used") == min(count, NAMED)
    assert (f"; and {count - NAMED} more." in note.message) == (count > NAMED)
    assert note.details["rows"] == count and note.details["gaps"][0]["gap"] == pytest.approx(-0.01 * count)


def test_a_namesake_is_told_by_family_size_and_date() -> None:
    known = load_catalog().models.set_index("model").loc["Gemma-7B"]
    same = {"model": "mine", "family": known["family"], "params_total_b": float(known["params_total_b"])}
    same["released"] = known["released"]
    changes: list[dict[str, Any]] = [
        {}, {"family": "Other"}, {"family": None}, {"params_total_b": 70.0}, {"params_total_b": 0.0},
        {"released": pd.Timestamp("2020-01-02")}, {"released": pd.NaT},
    ]  # fmt: skip
    said = []
    for change in changes:
        notes = _namesakes(pd.DataFrame([{**same, **change}, {**same, "model": "else"}]), {"mine": "Gemma-7B"})
        said.append(notes[0].message.partition("mine (")[2].partition(")")[0] if notes else "")
    size, date = float(known["params_total_b"]), known["released"].date()
    assert said == [
        "", f"family Other instead of {known['family']}", "", f"70 B parameters instead of {size:g} B", "",
        f"released 2020-01-02 instead of {date}", "",
    ]  # fmt: skip


def test_pooling_lets_in_usable_scores_of_the_same_shots_alone() -> None:
    catalog, reference = load_catalog(), load_reference("qwen1.5", "mmlu")
    before = catalog.scores
    pooled, (note,) = _pool(catalog, reference)
    own = before[before["benchmark"].eq("mmlu") & before["evaluator"].eq(reference.evaluator)].iloc[0]
    moved = pooled.scores["series"].ne(before["series"])
    assert note.details == {"rows": int(moved.sum())} and moved.sum() > 10
    assert set(pooled.scores.loc[moved, "series"]) == {own["series"]}
    assert set(before.loc[moved, "benchmark"]) == {"mmlu"} and set(before.loc[moved, "shots"]) == {own["shots"]}
    flags = [set(str(cell).split(";")) for cell in before["flags"]]
    flagged = pd.Series([bool((WRONG | OTHER_PROTOCOL) & cell) for cell in flags], before.index)
    same = before["benchmark"].eq("mmlu") & before["shots"].eq(own["shots"]) & before["series"].ne(own["series"])
    assert moved.equals(same & ~flagged)
    with pytest.raises(InputError, match=f"no mmlu score by '{reference.evaluator}' to pool with"):
        _pool(replace(catalog, scores=before[before["evaluator"].ne(reference.evaluator)]), reference)
    with pytest.raises(InputError, match="works on one benchmark, not on 'mean'"):
        _pool(catalog, load_reference("qwen1.5", "mean"))


def test_a_users_score_stands_in_only_where_the_references_evaluator_has_none() -> None:
    catalog, reference = load_catalog(), load_reference("qwen1.5", "mmlu")
    table = catalog.scores
    row = table[table["benchmark"].eq("mmlu") & table["evaluator"].eq(reference.evaluator)].iloc[0]
    mine = [
        row.to_dict() | {"model": name, "evaluator": "user", "score": 0.4, "series": "mine"}
        for name in ("new", row["model"])
    ]
    joined = pd.concat([table, pd.DataFrame(mine)], ignore_index=True)
    adopted, notes = _adopt(replace(catalog, scores=joined), reference, every=False)
    mmlu = adopted.scores[adopted.scores["benchmark"].eq("mmlu") & adopted.scores["evaluator"].eq(reference.evaluator)]
    new = mmlu[mmlu["model"].eq("new")].iloc[0]
    assert (new["series"], new["measured_by"], new["score"]) == (row["series"], "user", 0.4)
    kept = mmlu[mmlu["model"].eq(row["model"])]
    assert kept["score"].tolist() == [row["score"]] and kept["measured_by"].isna().all()
    assert [note.code for note in notes] == ["measured-already"] and row["model"] in notes[0].message
    # With nothing of a user's the catalog stays as it is.
    assert _adopt(catalog, reference, every=False) == (catalog, [])


def test_skills_are_those_of_which_the_family_has_a_reference() -> None:
    table = skill_densities(load_catalog(), "qwen1.5")
    assert set(table["skill"]) <= {"knowledge", "reasoning", "mathematics", "code"} and table["skill"].nunique() >= 2
    named = table.groupby("skill")["benchmarks"].first()
    for skill, benchmarks in named.items():
        assert benchmarks == ", ".join(load_reference("qwen1.5", str(skill)).benchmarks)
