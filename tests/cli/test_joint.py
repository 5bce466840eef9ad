"""``densing joint`` through its real entry point, on a small table of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from densing.scores import joint
from densing.scores.joint import Cells, JointScale, fit_joint, links, validation
from tests.support.command import answer, densing, printed
from tests.support.joint_worlds import plain_world

SHORT = ("--sweeps", "20")
MINE = ("--evaluator", "harness-a", "--evaluator", "harness-b")
NAMES = {"b0": "mmlu", "b1": "hellaswag", "b2": "gsm8k", "b3": "humaneval"}


@pytest.fixture(scope="module", autouse=True)
def one_fit_of_a_kind() -> Iterator[None]:
    """Commands on the same cells with the same options share a fit: chains depend on nothing else."""
    fitted: dict[object, JointScale] = {}

    def fit(cells: Cells, *, step: object = None, **options: int) -> JointScale:
        key = cells.table.to_csv(), *sorted(options.items())
        return fitted.setdefault(key, fitted.get(key) or fit_joint(cells, **options))

    with pytest.MonkeyPatch.context() as patch:
        for module in (joint, links, validation):
            patch.setattr(module, "fit_joint", fit)
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve models, four benchmarks of the catalog, two harnesses of one's own 0.4 logits apart."""
    cells = plain_world({"harness-a": 0.2, "harness-b": -0.2}, models=12, benchmarks=4).cells.table
    rows = cells[["model", "benchmark", "evaluator", "score"]].replace({"benchmark": NAMES})
    rows = rows[~(rows["evaluator"].eq("harness-b") & rows["model"].eq("m11"))]
    # Every score with its size and date, as one table of models and scores.
    rows = rows.assign(
        score=rows["score"].round(4), source="https://example.org/mine", params=7e9, released="2025-01-01"
    )
    path = tmp_path_factory.mktemp("joint") / "mine.csv"
    rows.to_csv(path, index=False)
    return path


def test_abilities_are_ranked_with_intervals(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "abilities.csv"
    shown = answer("joint", "abilities", "--catalog", str(table), *MINE, *SHORT, "--out", str(out))
    rows = shown["abilities"]
    assert len(rows) == 12 and rows[0]["model"] in ("m10", "m11") and rows[-1]["model"] in ("m00", "m01")
    assert all(row["lo"] < row["ability"] < row["hi"] for row in rows)
    assert pd.read_csv(out)["model"].tolist() == [row["model"] for row in rows]
    # How well the chains agree, over every sweep: four chains of twenty. Where they do not, a note says so.
    r_hat, ess = shown["convergence"]["r_hat"], shown["convergence"]["ess"]
    assert 1.0 < r_hat < 2.0 and 0 < ess < 80
    severities = {note["code"]: note["severity"] for note in shown["notes"]}
    assert severities.get("not-mixed") in ("warning", "error") if r_hat > 1.05 else "not-mixed" not in severities
    code = answer("joint", "abilities", "--basket", "code", "--catalog", str(table), *MINE, *SHORT)
    assert code["basket"] == "code" and len(code["abilities"]) == 12


def test_offsets_are_in_percentage_points(table: Path) -> None:
    rows = answer("joint", "offsets", "-b", "gsm8k", "--catalog", str(table), *MINE, *SHORT)["offsets"]
    assert {row["benchmark"] for row in rows} == {"gsm8k"}
    offset = {row["evaluator"]: row["offset_points"] for row in rows}
    # 0.4 logits at a share near one half are ten points.
    assert 4 < offset["harness-a"] - offset["harness-b"] < 14
    printed = densing("joint", "offsets", "--catalog", str(table), *MINE, *SHORT)
    # Whether four chains of twenty sweeps agree hangs on a machine's last bits; the exit code says where they do not.
    assert printed.returncode == (3 if "error: " in printed.stderr else 0)
    assert "8 offsets, percentage points" in printed.stdout
    assert "worst R-hat" in printed.stderr and "fewest effective draws" in printed.stderr


def test_links_and_refits(table: Path) -> None:
    structure = answer("joint", "links", "--catalog", str(table), *MINE)
    assert [(row["evaluator"], row["shared"], row["status"]) for row in structure["links"]] == [
        ("harness-a", 11, "linked"),
        ("harness-b", 11, "linked"),
    ]
    without = ("--refit", "evaluator", "--without", "harness-a")
    refits = answer("joint", "links", *without, "--catalog", str(table), *MINE, *SHORT)
    assert refits["lost"] == {"harness-a": ["m11"]} and refits["refits"][0]["models"] == 11


def test_links_of_the_embedded_catalog() -> None:
    done = densing("joint", "links")
    assert done.returncode == 0 and "euroeval" in done.stdout and "hangs by one model" in done.stderr


def test_validation_has_a_row_per_method(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "validation.json"
    common = ("--catalog", str(table), *MINE, *SHORT, "--splits", "pairs, time", "--seeds", "1")
    shown = answer("joint", "validate", *common, "--out", str(out))
    assert {row["method"] for row in shown["validation"]} >= {"joint", "ECI", "ECI by test", "PCA 1"}
    # Every model is dated before the cut-off.
    assert [note["code"] for note in shown["notes"]] == ["split-left-out"]
    assert printed(out.read_text()) == shown
    by = answer("joint", "validate", *common, "--by", "evaluator")
    assert {row["evaluator"] for row in by["validation"]} <= {"harness-a", "harness-b"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("abilities", "--basket", "cooking", *MINE), 1, "cooking"),
        (("abilities", "--evaluator", "nobody"), 1, "nobody"),
        (("offsets", "-b", "chess", *MINE), 1, "chess"),
        (("links", "--without", "harness-a", *MINE), 2, "--refit"),
        (("validate", "--splits", "colour", *MINE), 1, "colour"),
        (("validate", "--cutoff", "soon", *MINE), 2, "is not a date"),
        (("validate", "--by", "colour", "--splits", "pairs", "--seeds", "1", *MINE), 1, "colour"),
    ],
)
def test_what_there_is_not_is_named(table: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    sweeps = () if arguments[0] == "links" else SHORT
    done = densing("joint", *arguments, *sweeps, "--catalog", str(table))
    assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr


def test_one_evaluator_alone_has_no_offsets_and_says_so(table: Path) -> None:
    found = densing("joint", "offsets", "--catalog", str(table), *MINE[:2], *SHORT)
    # Of twenty sweeps the chains may disagree so far that it is an error.
    assert found.returncode in (0, 3) and "come from one evaluator a benchmark" in found.stderr
