"""A user's models among the catalog's: where they stand, what they must not move, and what is wrong in their table."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from densing.core import InputError
from densing.core.errors import TableError
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.density import DensityResult, catalog_densities
from densing.scores.references import Reference, load_reference
from densing.scores.study import Placed, place_scores
from tests.support.report_frames import HOSTILE

HEADER = "model,params,released,benchmark,score\n"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="module")
def reference() -> Reference:
    return load_reference("qwen1.5", "mmlu")


@pytest.fixture(scope="module")
def headline(catalog: Catalog, reference: Reference) -> DensityResult:
    return catalog_densities(catalog, reference).headline


def rows(model: str, score: float, params: float = 7e9, released: str | None = "2024-05-01") -> dict[str, object]:
    return {"model": model, "params": params, "released": released, "benchmark": "mmlu", "score": score}


@pytest.fixture(scope="module")
def placed(catalog: Catalog, reference: Reference, headline: DensityResult) -> Placed:
    mine = [rows("better", 0.72), rows("worse", 0.45), rows(HOSTILE, 0.6, released=None)]
    return place_scores(mine, catalog, reference, headline)


def test_ranks_are_counted_among_all_of_its_size_and_of_its_year(placed: Placed, headline: DensityResult) -> None:
    assert placed.ranks["model"].tolist() == ["better", HOSTILE, "worse"], "densest first"
    assert set(placed.densities.table["stratum"]) == {"yours"}
    others = headline.table
    for row in placed.ranks.to_dict("records"):
        alike = others["n_params"].between(3.5e9, 14e9)
        year = others["released"].dt.year.eq(2024) & pd.notna(row["released"])
        for label, mask in (("", others["model"].notna()), ("size_", alike), ("year_", year)):
            denser = int((others.loc[mask, "density"] > row["density"]).sum())
            size = int(mask.sum())
            assert (row[f"{label}rank"], row[f"{label}of"]) == ((denser + 1, size + 1) if size else (0, 0))


def test_a_tuned_model_is_placed_with_the_reason_that_keeps_it_out_of_headlines(
    catalog: Catalog, reference: Reference, headline: DensityResult
) -> None:
    mine = [
        rows("Zeta-7B-chat", 0.6),
        rows("Zeta-8x7B", 0.61, 47e9),
        rows("zeta 7b", 0.59),
        rows("gemma 7b", 0.6, 8.5e9),
    ]
    ranks = place_scores(mine, catalog, reference, headline).ranks.set_index("model")
    assert ranks["apart"].to_dict() == {"Zeta-7B-chat": "instruct", "Zeta-8x7B": "moe", "zeta 7b": "", "gemma 7b": ""}
    assert ranks.loc["gemma 7b", "known_as"] == "Gemma-7B"
    assert ranks.loc["gemma 7b", "of"] == ranks.loc["zeta 7b", "of"] - 1 == len(headline)


def test_neighbours_are_the_nearest_in_density(placed: Placed, headline: DensityResult) -> None:
    row = placed.ranks.iloc[0]
    near = row["neighbours"].split(", ")
    density = headline.table.set_index("model")["density"].loc[near]
    assert (density > row["density"]).any() and (density < row["density"]).any()
    between = headline.table["density"].between(density.min(), density.max(), inclusive="neither")
    assert int(between.sum()) == len(near) - 2


def test_a_tables_mistakes_are_named(
    tmp_path: Path, catalog: Catalog, reference: Reference, headline: DensityResult
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{HEADER}mine,7e9,2024-05-01,mmlu,0.6\nmine,7e9,2024-05-01,gsm8k,lots\n", encoding="utf-8")
    with pytest.raises(TableError) as refused:
        place_scores(path, catalog, reference, headline)
    assert str(path) in str(refused.value) and "row 3" in str(refused.value) and "score" in str(refused.value)
    path.write_text(f"{HEADER}mine,7e9,2024-05-01,gsm8k,0.6\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.csv: no score on mmlu"):
        place_scores(path, catalog, reference, headline)


@pytest.mark.slow
@pytest.mark.usefixtures("embedded_scale")
def test_the_joint_scale_reads_whatever_benchmarks_a_table_holds(catalog: Catalog) -> None:
    joint = load_reference("joint", catalog=catalog)
    headline = catalog_densities(catalog, joint).headline
    before = headline.table.copy()
    known = catalog.scores[catalog.scores["model"].eq("Qwen2.5-7B") & catalog.scores["evaluator"].eq("falcon_h1_docs")]
    assert len(known) >= 4, "the twin needs scores to be known by"
    # The twin of a model of the catalog: its scores, another name.
    mine = [
        {"model": "twin", "params": 7.6e9, "released": "2024-09-19", "benchmark": row.benchmark, "score": row.score}
        | {"evaluator": row.evaluator}
        for row in known.itertuples()
    ]
    placed = place_scores(mine, catalog, joint, headline)
    pd.testing.assert_frame_equal(catalog_densities(catalog, joint).headline.table, before)
    twin = placed.densities.table.iloc[0]
    original = headline.table.set_index("model").loc["Qwen2.5-7B"]
    # From a few of its scores, so with a wider interval, which holds what all of them say.
    assert twin["density_lo"] < original["density"] < twin["density_hi"]
    assert abs(math.log(twin["density"] / original["density"])) < 1.0
    # The same scores under its own name are a measurement of it, ranked among the others.
    again = place_scores([{**row, "model": "qwen2.5 7b"} for row in mine], catalog, joint, headline)
    known = again.densities.table.iloc[0]
    assert (known["model"], known["known_as"], known["verified"]) == ("qwen2.5 7b", "Qwen2.5-7B", False)
    assert known["density"] == pytest.approx(twin["density"], rel=0.02)
    assert again.ranks["of"].item() == placed.ranks["of"].item() - 1 == len(headline)
    one = place_scores([{**mine[0], "model": "qwen2.5 7b"}], catalog, joint, headline)
    [single] = [note for note in one.notes if note.code == "one-score"]
    assert "1 model with one score (qwen2.5 7b)" in single.message and single.details["models"] == ["qwen2.5 7b"]
    with pytest.raises(InputError, match=r"no score can be placed on the joint scale: olmo3_eval_math \(no scale\)"):
        place_scores([rows("mine", 0.7) | {"benchmark": "olmo3_eval_math"}], catalog, joint, headline)
    with pytest.raises(TableError, match="row 2, column benchmark: 'nobody_knows'"):
        place_scores([rows("mine", 0.7) | {"benchmark": "nobody_knows"}], catalog, joint, headline)
