"""What links evaluators, on graphs that can be drawn by hand, and what a scale says of those that nothing links."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core import InputError, UnknownNameError
from densing.scores.joint.cells import Cells, toy_cells
from densing.scores.joint.links import NOTHING, Links, evaluator_links, leave_one_out
from tests.support.joint_worlds import cells_of

SHORT = {"chains": 1, "sweeps": 12, "burn": 8, "draws": 12}


def cells(*measured: tuple[str, str], benchmarks: str = "xyz", score: float = 0.5) -> Cells:
    """Return cells of (evaluator, models) with one letter per model, each on all benchmarks."""
    rows = [(m, b, evaluator, score) for evaluator, models in measured for m in models for b in benchmarks]
    return cells_of(pd.DataFrame(rows, columns=["model", "benchmark", "evaluator", "score"]))


def statuses(links: Links) -> dict[str, str]:
    return dict(zip(links.table["evaluator"], links.table["status"], strict=True))


def said(links: Links) -> dict[str, str]:
    return {note.code: note.message for note in links.notes}


def test_two_shared_models_link_and_one_is_a_thread() -> None:
    links = evaluator_links(cells(("A", "abcdef"), ("B", "efgh"), ("C", "hij"), ("D", "k")))
    assert statuses(links) == {
        "A": "linked",
        "B": "linked",
        "C": "hangs by one model: h",
        "D": "not linked",
    }
    assert links.table.set_index("evaluator").loc["B", ["shared", "evaluators", "component"]].tolist() == [3, 2, 0]
    assert said(links)["hangs-by-one-model"] == "C hangs by one model: h"
    assert said(links)["not-linked"].startswith("no model links D to the 3 evaluators of the main part; only the assum")


def test_a_group_hangs_by_the_model_that_holds_it() -> None:
    # C and D share two models with each other, but only e with the rest.
    links = evaluator_links(cells(("A", "abcde"), ("B", "abcd"), ("C", "efg"), ("D", "fg")))
    assert statuses(links) == {
        "A": "linked",
        "B": "linked",
        "C": "hangs by one model: e",
        "D": "hangs by one model: e",
    }


def test_nothing_in_common_is_an_error() -> None:
    one, other = cells(("A", "abc")).table, cells(("B", "def"), benchmarks="uvw").table
    both = Cells(pd.concat([one, other], ignore_index=True), cells(("A", "a")).dropped)
    notes = {note.code: note for note in evaluator_links(both).notes}
    assert notes["not-linked"].severity == "error" and "they cannot be compared" in notes["not-linked"].message


def test_one_evaluator_single_scores_and_few_models_have_a_sentence() -> None:
    table = cells(("A", "abc")).table
    table = table[~(table["model"].eq("c") & table["benchmark"].ne("x"))]
    links = evaluator_links(Cells(table, cells(("A", "a")).dropped))
    assert statuses(links) == {"A": "only evaluator"}
    assert "A is the only evaluator" in said(links)["one-evaluator"]
    assert said(links)["one-score"] == "1 model with one score (c): placed by that score alone"
    assert said(links)["few-models"].startswith("y, z: fewer than 3 models share it")


def test_ends_of_the_scale_have_a_sentence() -> None:
    top = evaluator_links(cells(("A", "abc"), ("B", "abc"), score=0.99))
    assert said(top)["at-ceiling"] == "all tests are at their ceiling: the scores cannot distinguish the models"
    assert (
        "all tests are at their floor"
        in said(evaluator_links(cells(("A", "abc"), ("B", "abc"), score=0.0)))["at-floor"]
    )
    table = cells(("A", "abc"), ("B", "abc")).table
    one = table.assign(score=table["score"].mask(table["test"].eq("x@A"), 0.99))
    assert said(evaluator_links(Cells(one, toy_cells().dropped)))["at-ceiling"].startswith("x@A: at the ceiling")


@settings(max_examples=40)
@given(edges=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 4)), min_size=1, max_size=20))
def test_components_and_threads_are_those_of_networkx(edges: set[tuple[int, int]]) -> None:
    table = pd.DataFrame(
        [(f"m{m}", b, f"e{e}", 0.5) for m, e in sorted(edges) for b in "xy"],
        columns=["model", "benchmark", "evaluator", "score"],
    )
    links = evaluator_links(cells_of(table)).table.set_index("evaluator")
    graph = nx.Graph([(f"m{m}", f"e{e}") for m, e in edges])
    parts = [{node for node in part if node[0] == "e"} for part in nx.connected_components(graph)]
    assert {frozenset(group.index) for _, group in links.groupby("component")} == {frozenset(part) for part in parts}
    if links["component"].max() == 0 and len(links) > 1:
        # A model that cuts the graph makes somebody hang, and nobody hangs without one.
        cuts = {node for node in nx.articulation_points(graph) if node[0] == "m"}
        assert links["status"].str.startswith("hangs").any() == bool(cuts)
        assert set(links["status"].str.extract(r"hangs by one model: (\w+)")[0].dropna()) <= cuts


def test_leaving_out_an_evaluator_says_who_moves_and_who_is_lost() -> None:
    toy = toy_cells()
    alone = toy.table[toy.table["model"].eq("m3")].assign(model="x", evaluator="third")
    alone = alone.drop_duplicates("benchmark").assign(test=lambda rows: rows["benchmark"] + "@third")
    whole = replace(toy, table=pd.concat([toy.table, alone], ignore_index=True))
    result = leave_one_out(whole, ["second", "third"], **SHORT)
    assert result.table["without"].tolist() == ["second", "third", NOTHING] and result.lost == {
        "second": (),
        "third": ("x",),
    }
    assert (result.table["median"] <= result.table["p90"]).all()
    assert result.table.set_index("without").loc["third", "models"] == 10
    assert "without third 1 model has no place: x" in [note.message for note in result.notes]
    by_benchmark = leave_one_out(toy, ["b0"], column="benchmark", **SHORT)
    assert by_benchmark.table["cells"].tolist() == [15, 0] and "joint scale without each benchmark" in repr(
        by_benchmark
    )


def test_leaving_out_what_is_not_there_or_is_everything_is_refused() -> None:
    toy = toy_cells()
    with pytest.raises(UnknownNameError, match="nobody"):
        leave_one_out(toy, ["nobody"])
    with pytest.raises(UnknownNameError, match="column to leave out"):
        leave_one_out(toy, column="model")
    one = replace(toy, table=toy.table.query("evaluator == 'first'"))
    with pytest.raises(InputError, match="fewer than two models are left"):
        leave_one_out(one, ["first"], **SHORT)
    with pytest.raises(InputError, match="no evaluator covers 10 models"):
        leave_one_out(replace(toy, table=toy.table.query("model < 'm3'")))


def test_notes_can_speak_of_some_models_only() -> None:
    table = toy_cells().table
    mine = (
        table.drop_duplicates("benchmark")
        .head(2)
        .assign(model="mine", evaluator="me", test=lambda rows: rows["benchmark"] + "@me")
    )
    cells = Cells(pd.concat([table, mine], ignore_index=True), toy_cells().dropped)
    assert "not-linked" in {note.code for note in evaluator_links(cells, ["mine"]).notes}
    assert not evaluator_links(cells, ["m3"]).notes
