"""A user's tables: every accepted form, every refusal with its words, rows added to them, and what a check tells."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import densing
from densing.core.errors import DensingError, InputError, TableError, UnknownNameError
from densing.scores.catalog import Catalog, add_model, add_score, load_catalog, score_table, select, validate_catalog

COMBINED = "model,params,released,benchmark,score\n"
ROWS = [
    {"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6},
    {"model": "yours", "params": 7_000_000_000, "released": "2024-07-01", "benchmark": "mmlu", "score": 0.62},
]


def put(folder: Path, text: str, name: str = "mine.csv") -> Path:
    place = folder / name
    place.write_text(text, encoding="utf-8")
    return place


def refused(folder: Path, text: str, name: str = "mine.csv") -> str:
    with pytest.raises(TableError) as caught:
        load_catalog(put(folder, text, name))
    message = str(caught.value)
    assert name in message
    return message


def test_a_combined_table_gives_models_and_scores(tmp_path: Path) -> None:
    text = COMBINED + "Tiny,7e8,2024-05-01,mmlu,0.31\nTiny,7e8,2024-05-01,gsm8k,0.1\n"
    catalog = load_catalog(put(tmp_path, text))
    row = catalog.models.set_index("model").loc["Tiny"]
    assert (row["params_total_b"], row["params_active_b"], row["family"]) == (0.7, 0.7, "Tiny")
    assert row["released"] == pd.Timestamp("2024-05-01")
    assert (row["released_basis"], row["released_source"], row["kind"]) == ("vendor", "user:mine.csv", "base")
    mine = catalog.scores[catalog.scores["model"] == "Tiny"]
    assert mine["series"].tolist() == ["mmlu:user", "gsm8k:user"]
    assert set(mine["source"]) == {"user:mine.csv"} <= set(catalog.sources["id"])
    assert "Tiny" in set(select(catalog)["model"])
    assert score_table(catalog, "mmlu", evaluator="user")["score"].tolist() == [0.31]


def test_without_the_embedded_catalog_only_the_users_rows_are_there(tmp_path: Path) -> None:
    place = put(tmp_path, COMBINED + "Llama-3-8B,8e9,2024-04-18,mmlu,0.66\n")
    catalog = load_catalog(place, embedded=False)
    assert len(catalog.models) == len(catalog.scores) == 1
    assert score_table(catalog, "mmlu")["score"].tolist() == [0.66]


def test_a_known_evaluator_puts_a_users_score_into_its_series(tmp_path: Path) -> None:
    models = put(tmp_path, "model,params_b,released\nTiny,0.7,2024-05-01\n", "models.csv")
    scores = put(tmp_path, "model,benchmark,score,evaluator\nTiny,mmlu,0.31,swallow\n", "scores.csv")
    for catalog in (load_catalog(models, scores), load_catalog(tmp_path)):
        assert catalog.scores.iloc[-1]["series"] == "mmlu:joined"
        assert "Tiny" in set(score_table(catalog, "mmlu")["model"])


def test_a_users_source_text_is_kept_behind_the_name_of_the_file(tmp_path: Path) -> None:
    text = "model,benchmark,score,source\nLlama-3-8B,mmlu,0.5,our wiki\nLlama-3-70B,mmlu,0.5,swallow#x\n"
    catalog = load_catalog(put(tmp_path, text))
    assert catalog.scores["source"].tolist()[-2:] == ["user:mine.csv#our wiki", "swallow#x"]


def test_a_folder_may_declare_benchmarks_and_evaluators(tmp_path: Path) -> None:
    put(tmp_path, "id,chance,items\nmine,0.5,200\n", "benchmarks.csv")
    put(tmp_path, "id,who,role\nlab,our lab,user\n", "evaluators.csv")
    put(tmp_path, "model,benchmark,score,evaluator\nLlama-3-8B,mine,0.75,lab\n", "scores.csv")
    catalog = load_catalog(tmp_path)
    table = score_table(catalog, "mine")
    # Binomial error of 150 out of 200, Jeffreys' centre: 150.5/201.
    assert table.loc[0, "score_se"] == pytest.approx(np.sqrt(150.5 / 201 * 50.5 / 201 / 200))


def test_a_new_evaluator_is_told(tmp_path: Path) -> None:
    catalog = load_catalog(put(tmp_path, "model,benchmark,score,evaluator\nLlama-3-8B,mmlu,0.5,obscaling\n"))
    assert [note.code for note in catalog.notes] == ["new-evaluator"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            COMBINED + "T,7,2024-05-01,mmlu,0.3\n",
            ["row 2, column params", "7 is below", "params is a count: write 7e9"],
        ),
        (
            COMBINED + "T,7e9,2024-05-01,mmlu,45\n",
            ["row 2, column score", "45 is above", "write 0.45 for 45 %"],
        ),
        (COMBINED + "T,7e9,2999-01-01,mmlu,0.3\n", ["column released", "'2999-01-01'"]),
        (COMBINED + "T,7e9,2099-01-01,mmlu,0.3\n", ["column released", "2099-01-01 is above", "today"]),
        (COMBINED + "T,7e9,2011-01-01,mmlu,0.3\n", ["2011-01-01 is below 2018-01-01"]),
        (
            COMBINED + "T,7e9,2024-05-01,mlu,0.3\n",
            ["row 2, column benchmark", "'mlu' is not in the catalog", "nearest: 'mmlu'", "benchmarks.csv"],
        ),
        (
            COMBINED + "T,7e9,2024-05-01,mmlu,0.3\nT,8e9,2024-05-01,math,0.3\n",
            ["column params:", "T has 7.0 (row 2) and 8.0 (row 3)", "one value per model"],
        ),
        (
            COMBINED + "T,7e9,2024-05-01,mmlu,0.3\nT,7e9,2024-05-01,mmlu,0.4\n",
            ["row 3", "a second row with other values", "first in row 2"],
        ),
        (
            COMBINED + "Llama-3-8B,9e9,2024-04-18,mmlu,0.6\n",
            [
                "row 2, column params:",
                "9.0 B for Llama-3-8B",
                "the embedded catalog has 8.03 B",
                "leave the cell blank",
            ],
        ),
        (
            "model,benchmark,score,evaluator\nLlama-3-8B,mmlu,0.1,obsscaling\n",
            [
                "row 2, column score",
                "0.1 for Llama-3-8B mmlu obsscaling",
                "state who measured yours in a column evaluator",
            ],
        ),
        (
            "model,benchmark,score\nLlama-3-8c,mmlu,0.1\n",
            [
                "column model",
                "'Llama-3-8c' is not in the catalog",
                "nearest: 'Llama-3-8B'",
                "table of models",
            ],
        ),
        ("model,params_b\nT,7e9\n", ["row 2, column params_b", "7e9 is above", "billions: write 7"]),
        ("model,params_total_b\nT,7000000\n", ["column params_total_b", "billions: write 7"]),
        ("model,params,params_b\nT,7e9,7\n", ["params and params_b both state the size"]),
        ("model,params_b,tokens_t\nT,7,15e12\n", ["column tokens_t", "trillions: write 15"]),
        (
            "model,params_b,params_active_b\nT,7,8\n",
            ["row 2, column params_active_b", "8 is above the total of 7"],
        ),
        (
            "model,params_b,params_non_embedding_b\nT,7,7.2\n",
            ["row 2, column params_non_embedding_b", "7.2 is above the total of 7"],
        ),
        ("model,params_b,kind\nT,7,chat\n", ["'chat' is not one of base, continued, compressed, instruct"]),
        ("model,params_b,architecture\nT,7,sparse\n", ["'sparse' is not one of dense, moe"]),
        (
            "model,params_b,kind,derived_from\nT,7,continued,Llama-3-8\n",
            ["column derived_from", "'Llama-3-8' is not in the catalog", "nearest: 'Llama-3-8B'", "notes"],
        ),
    ],
)
def test_what_is_wrong_is_refused_with_file_row_column_value_and_remedy(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    message = refused(tmp_path, text)
    for word in words:
        assert word in message


def test_tables_of_no_known_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="match no known form; give a table of models"):
        load_catalog(put(tmp_path, "a,b\n1,2\n"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"contains neither models\.csv nor scores\.csv"):
        load_catalog(tmp_path / "empty")


def test_the_same_row_again_is_dropped_with_a_note(tmp_path: Path) -> None:
    plain = load_catalog()
    row = plain.scores.iloc[7]
    columns = ["model", "benchmark", "score", "evaluator"]
    text = ",".join(columns) + "\n" + ",".join(str(row[column]) for column in columns) + "\n"
    catalog = load_catalog(put(tmp_path, text))
    pd.testing.assert_frame_equal(catalog.scores, plain.scores)
    assert [note.code for note in catalog.notes] == ["repeated-rows"]


def test_replace_takes_the_users_value_and_source(tmp_path: Path) -> None:
    place = put(tmp_path, "model,benchmark,score,evaluator\nLlama-3-8B,mmlu,0.1,obsscaling\n")
    catalog = load_catalog(place, replace=True)
    row = catalog.scores.query("model == 'Llama-3-8B' and benchmark == 'mmlu' and evaluator == 'obsscaling'")
    assert row["score"].tolist() == [0.1] and row["source"].tolist() == ["user:mine.csv"]
    assert len(catalog.scores) == len(load_catalog().scores)
    assert [note.code for note in catalog.notes] == ["replaced-rows"]


def test_a_users_row_fills_what_the_catalog_does_not_know(tmp_path: Path) -> None:
    catalog = load_catalog(put(tmp_path, "model,params_b\nMiniCPM-1.2B,1.5\n"))
    row = catalog.models.set_index("model").loc["MiniCPM-1.2B"]
    assert (row["params_total_b"], row["params_source"]) == (1.5, "user:mine.csv")
    assert row["released_source"].startswith("minicpm#")


def test_a_second_file_is_checked_against_the_first(tmp_path: Path) -> None:
    first = put(tmp_path, COMBINED + "T,7e9,2024-05-01,mmlu,0.3\n", "one.csv")
    second = put(tmp_path, COMBINED + "T,7e9,2024-05-01,mmlu,0.4\n", "two.csv")
    with pytest.raises(
        TableError, match=r"two\.csv: row 2, column score: 0\.4 for T mmlu user, where one\.csv has 0\.3"
    ):
        load_catalog(first, second)


NAMES = "model params params_b params_total_b released benchmark score evaluator kind derived_from source odd"
HEADERS = st.lists(st.sampled_from(NAMES.split()), min_size=1, max_size=8, unique=True)
VALUES = "T Llama-3-8B mmlu 0.3 45 7e9 7 2024-05-01 2099-01-01 user obsscaling base moe nan <b> a;b#c"
CELLS = st.sampled_from(["", *VALUES.split()])


@given(HEADERS, st.data())
def test_any_table_gives_a_catalog_or_a_named_refusal(header: list[str], data: st.DataObject) -> None:
    row = st.lists(CELLS, min_size=len(header), max_size=len(header))
    stream = io.StringIO()
    csv.writer(stream).writerows([header, *data.draw(st.lists(row, min_size=1, max_size=3))])
    check_any(stream.getvalue().encode())


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "ignore"))))
def test_any_bytes_give_a_catalog_or_a_named_refusal(content: bytes) -> None:
    check_any(content)


def check_any(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "any.csv"
        place.write_bytes(content)
        try:
            catalog = load_catalog(place)
        except DensingError as error:
            assert str(error)
        else:
            assert isinstance(catalog, Catalog)
            assert catalog.models["model"].is_unique
            assert catalog.scores["score"].between(0, 1).all()


def test_a_file_a_frame_and_records_give_the_same_densities(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    frame["released"] = pd.to_datetime(frame["released"])
    path = tmp_path / "mine.csv"
    pd.DataFrame(ROWS).to_csv(path, index=False)
    reference = densing.load_reference("qwen1.5", "mmlu")
    ours, theirs, records = (densing.table_densities(table, reference) for table in (str(path), frame, ROWS))
    # A file's rows name it as their source.
    columns = ours.table.columns.drop("source")
    pd.testing.assert_frame_equal(ours.table[columns], theirs.table[columns])
    pd.testing.assert_frame_equal(ours.table[columns], records.table[columns])
    assert len(densing.load_catalog(frame).models) == len(densing.load_catalog(path).models)


@pytest.mark.parametrize("table", [7, [1], {"a": 1}, ROWS[0], [], pd.DataFrame(), [{"model": "x"}], b"rows"])
def test_what_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises(InputError, match="table"):
        densing.table_densities(table, densing.load_reference("qwen1.5", "mmlu"))


def test_messages_name_row_and_column_of_a_table_in_memory() -> None:
    wrong = [*ROWS, {**ROWS[0], "model": "x", "score": "sixty"}]
    with pytest.raises(InputError, match=r"(?s)the table.*row 4.*score.*sixty"):
        densing.table_densities(wrong, densing.load_reference("qwen1.5", "mmlu"))


def test_models_and_scores_are_appended_and_load_again(tmp_path: Path) -> None:
    add_model(tmp_path, model="Tiny", params=7e8, released=pd.Timestamp("2024-05-01"))
    add_model(tmp_path, model="Small", params=2e9, released="2024-06-01", kind="base")
    assert add_score(tmp_path, model="Tiny", benchmark="mmlu", score=0.31) == []
    add_score(tmp_path, model="Small", benchmark="mmlu", score=0.42, shots=5)
    catalog = load_catalog(tmp_path)
    assert catalog.models.set_index("model").loc["Small", "params_total_b"] == 2.0
    mine = catalog.scores.tail(2)
    assert mine["score"].tolist() == [0.31, 0.42]
    assert mine["shots"].isna().tolist() == [True, False]


def test_a_row_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    add_score(file, model="Llama-3-8B", benchmark="mmlu", score=0.5)
    before = file.read_bytes()
    for fields, words in [
        ({"model": "Llama-3-8B", "benchmark": "math", "score": 45}, "row 3, column score"),
        (
            {"model": "Llama-3-8B", "benchmark": "math", "score": 0.4, "items": float("nan")},
            "'nan' is not a whole",
        ),
        ({"model": "Nobody", "benchmark": "math", "score": 0.4}, "'Nobody' is not in the catalog"),
        ({"model": "Llama-3-8B", "benchmark": "mmlu", "score": 0.6}, "a second row with other values"),
        ({"model": "Llama-3-8B", "benchmark": "mmlu", "score": 0.6, "evaluator": "obsscaling"}, "column evaluator"),
    ]:
        with pytest.raises(TableError, match=words):
            add_score(file, **fields)
        assert file.read_bytes() == before
    with pytest.raises(UnknownNameError, match="did you mean 'score'"):
        add_score(file, model="Llama-3-8B", benchmark="math", scor=0.4)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_a_first_row_that_does_not_fit_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="row 2, column params: 7 is below"):
        add_model(tmp_path / "new" / "models.csv", model="Tiny", params=7)
    assert list(tmp_path.iterdir()) == []


def test_scores_in_a_file_may_refer_to_a_further_table(tmp_path: Path) -> None:
    add_model(tmp_path / "m.csv", model="Tiny", params_b=0.7)
    with pytest.raises(TableError, match="'Tiny' is not in the catalog"):
        add_score(tmp_path / "s.csv", model="Tiny", benchmark="mmlu", score=0.3)
    add_score(tmp_path / "s.csv", extra=[tmp_path / "m.csv"], model="Tiny", benchmark="mmlu", score=0.3)
    assert len(load_catalog(tmp_path / "m.csv", tmp_path / "s.csv").scores) == len(load_catalog().scores) + 1


def test_validation_returns_errors_as_notes(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("model,benchmark,score\nLlama-3-8B,mmlu,45\nLlama-3-8B,math,46\n")
    notes = validate_catalog(file)
    assert [(note.code, note.severity) for note in notes] == [("invalid-table", "error")] * 2
    assert "row 3, column score" in notes[1].message and "bad.csv" in notes[1].message


def test_validation_warns_of_far_scores_and_missing_parents(tmp_path: Path) -> None:
    add_model(tmp_path, model="Chatty", params_b=8, kind="instruct", released="2024-05-01")
    add_score(tmp_path, model="Llama-3-8B", benchmark="mmlu", score=0.25)
    add_score(tmp_path, model="Llama-3-70B", benchmark="mmlu", score=0.79)
    notes = validate_catalog(tmp_path)
    assert [note.code for note in notes] == ["wide-spread", "no-parent"]
    assert notes[0].details == {"model": "Llama-3-8B", "benchmark": "mmlu"}


def test_a_good_table_gives_no_notes(tmp_path: Path) -> None:
    add_model(tmp_path, model="Tiny", params_b=0.7, released="2024-05-01")
    assert validate_catalog(tmp_path) == []


def test_a_release_date_may_name_a_month(tmp_path: Path) -> None:
    place = put(tmp_path, "model,params_b,released\nA-1B,1,2026-03\nB-1B,1,2026-03-02\nC-1B,1,\n")
    models = load_catalog(place).models.set_index("model")
    assert models.loc["A-1B", "released"] == pd.Timestamp("2026-03-15")
    assert models.loc[["A-1B", "B-1B"], "released_precision"].tolist() == ["month", "day"]
    assert models.loc["C-1B", "released_precision"] is None
    combined = put(tmp_path, COMBINED + "Tiny,7e8,2024-05,mmlu,0.31\nTiny,7e8,2024-05,gsm8k,0.1\n", "both.csv")
    assert load_catalog(combined).models.set_index("model").loc["Tiny", "released_precision"] == "month"


def test_the_present_month_ends_today(tmp_path: Path) -> None:
    today = pd.Timestamp.now().normalize()
    place = put(tmp_path, f"model,params_b,released\nA-1B,1,{today:%Y-%m}\n")
    released = load_catalog(place).models.set_index("model").loc["A-1B", "released"]
    assert released == min(today, today.replace(day=15))


@pytest.mark.parametrize("month", ["2026-13", "2026-00", "2026", "Mars 2026", "2026-3"])
def test_what_is_no_month_is_refused(tmp_path: Path, month: str) -> None:
    message = refused(tmp_path, f"model,params_b,released\nA-1B,1,{month}\n")
    assert "row 2, column released" in message and "2024-02" in message


def test_a_month_in_the_future_and_a_month_called_a_day_are_refused(tmp_path: Path) -> None:
    later = (pd.Timestamp.now() + pd.DateOffset(months=2)).strftime("%Y-%m")
    assert "is above" in refused(tmp_path, f"model,params_b,released\nA-1B,1,{later}\n")
    text = "model,params_b,released,released_precision\nA-1B,1,2026-03,day\n"
    assert "column released_precision: 'day', where released names the month 2026-03" in refused(tmp_path, text)


def test_a_month_that_holds_our_day_is_no_contradiction(tmp_path: Path) -> None:
    place = put(tmp_path, "model,params_b,released\nLlama-3-8B,8.03,2024-04\n")
    row = load_catalog(place).models.set_index("model").loc["Llama-3-8B"]
    assert (row["released"], row["released_precision"]) == (pd.Timestamp("2024-04-18"), "day")


def test_another_date_or_family_of_a_known_model_is_the_users_to_state_and_another_kind_is_another_model(
    tmp_path: Path,
) -> None:
    text = "model,params_b,released,family\nllama 3 8b,8.03,2024-05,Herd\nMine-7B,7,2024-06-01,Mine\n"
    catalog = load_catalog(put(tmp_path, text))
    assert catalog.models["model"].eq("Llama-3-8B").sum() == 1 and "llama 3 8b" not in set(catalog.models["model"])
    row = catalog.models.set_index("model").loc["Llama-3-8B"]
    assert (row["released"], row["released_precision"], row["family"]) == (pd.Timestamp("2024-05-15"), "month", "Herd")
    assert row["organisation"] == "Meta", "what is not stated stays the catalog's"
    [note] = [note for note in catalog.notes if note.code == "replaced-rows"]
    assert "Llama-3-8B (family Llama-3 → Herd, released 2024-04-18 → 2024-05-15)" in note.message
    assert note.severity == "warning"
    other = "model,params_b,released,kind\nLlama-3-8B,8.03,2024-05-01,instruct\n"
    said = refused(tmp_path, other)
    assert "column kind: instruct for Llama-3-8B" in said and "column released" not in said


@pytest.mark.parametrize("error", ["0", "-0.1", "inf", "2"])
def test_a_stated_error_is_a_positive_share(tmp_path: Path, error: str) -> None:
    text = f"model,benchmark,score,evaluator,stated_se\nLlama-3-8B,mmlu,0.6,me,{error}\n"
    assert "row 2, column stated_se" in refused(tmp_path, text)


def test_a_stated_error_is_used(tmp_path: Path) -> None:
    text = "model,params_b,released,benchmark,score,stated_se\nA-1B,1,2026-03,life_in_the_uk,0.6,0.05\n"
    table = score_table(load_catalog(put(tmp_path, text)), "life_in_the_uk", evaluator="user")
    assert table["score_se"].tolist() == [0.05]
