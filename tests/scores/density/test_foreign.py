"""From somebody else's results to densities: sizes that the user gives, and nothing that is left out in silence."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from densing.cli.options import parse_params
from densing.core.errors import InputError
from densing.core.files import read_text
from densing.core.table_io import read_cells
from densing.scores.catalog import load_catalog, with_sizes
from densing.scores.density import run_densities
from densing.scores.evals.identity import UnitKey
from densing.scores.evals.readers import read_results
from densing.scores.evals.store import RunStore
from densing.scores.evals.subjects import SUBJECTS
from tests.support.command import answer, densing
from tests.support.eval_files import cell, lighteval_file, results_of, samples_of, write_json, write_results

POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daa\nsize 12\n"
)


def mmlu(folder: Path, name: str, score: float = 0.55, **values: Any) -> Path:
    """A results file of lm-eval on MMLU, measured as the Open LLM Leaderboard did, without a size."""
    config = {"task": "mmlu", "output_type": "multiple_choice", "doc_to_choice": ["A", "B", "C", "D"]}
    content = {
        "results": {"mmlu": {"acc,none": score, "acc_stderr,none": 0.004, **values}},
        "configs": {"mmlu": config},
        "n-shot": {"mmlu": 5},
        "config": {"model": "hf", "model_args": f"pretrained={name}"},
    }
    return write_json(folder / "results_2026-11-21T13-07-22.365437.json", content)


# ---- nothing is left out in silence --------------------------------------------------------------------------

NAMES = ["mmlu", "hendrycksTest-anatomy", "hellaswag", "ARC-c", "gsm8k", "openai_humaneval", "arc:challenge", "poems"]
SUBJECTS_OF = ["", "hendrycksTest-", "lukaemon_mmlu_", "mmlu:subject=", "mmlu_"]
METRICS_READ = ["acc,none", "acc_norm,none", "exact_match,strict-match", "exact_match,flexible-extract", "bleu,none",
                "pass@1,none"]  # fmt: skip


@given(
    tasks=st.dictionaries(
        st.sampled_from(NAMES) | st.text("abc_-:=@", min_size=1, max_size=8),
        st.dictionaries(st.sampled_from(METRICS_READ), st.floats(0.0, 1.0), min_size=1, max_size=3),
        max_size=4,
    ),
    prefix=st.sampled_from(SUBJECTS_OF),
    missing=st.booleans(),
)
# A smaller failing case would take minutes: each is read on a reference.
@settings(max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_every_benchmark_of_a_file_is_used_or_named(
    tmp_path_factory: pytest.TempPathFactory, tasks: dict[str, Any], prefix: str, missing: bool
) -> None:
    subjects = {f"{prefix}{name}": {"acc,none": 0.5} for name in SUBJECTS[missing:]} if prefix else {}
    content = {"results": {"winogrande": {"acc,none": 0.6}} | subjects | tasks, "config": {"model": "me/toy"}}
    read = read_results(write_json(tmp_path_factory.getbasetemp() / "any.json", content))
    densities = run_densities(read.measurements, read.models.assign(params_total=7e9), "qwen1.5")
    named = " ".join(note.message for note in (*read.notes, *densities.notes))
    told = {task for note in densities.notes for task in (*note.details.get("tasks", ()), note.details.get("task"))}
    means = {f"{prefix}*", *(["mmlu"] if prefix in ("mmlu_", "lukaemon_mmlu_") else [])}
    for task in content["results"]:
        of_mean = task in subjects and means & set(densities.table["source"])
        assert of_mean or task in told or task in set(densities.table["source"]), task
    assert ("weigh alike" in named) == bool(prefix and not missing and "mmlu" not in tasks)


# ---- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["mine", "mine=", "=1e9", "mine=13", "mine=big", "mine=inf", "mine=nan"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="13e9 for 13 billion"):
        parse_params([text])


def test_a_name_may_hold_an_equals_sign() -> None:
    assert parse_params(["a=b=1e9", "a=b=1e9"]) == {"a=b": 1e9}
    with pytest.raises(InputError, match="a=b has 1e"):
        parse_params(["a=b=1e9", "a=b=2e9"])


def test_foreign_results_become_densities_through_the_command(tmp_path: Path) -> None:
    mmlu(tmp_path / "known", "meta-llama/Llama-2-13b-hf")
    mmlu(tmp_path / "mine", "me/toy")
    rows = answer("density", "--results", str(tmp_path), "--reference", "qwen1.5", "--params", "me/toy=6.5e9")
    by = {row["model"]: row for row in rows}
    assert by["me/toy"]["density"] == pytest.approx(2 * by["meta-llama/Llama-2-13b-hf"]["density"])
    assert by["meta-llama/Llama-2-13b-hf"]["size_from"] == "catalog: Llama-2-13B (alias)"
    assert {row["protocol"] for row in rows} == {"same"}
    alone = densing("density", "--results", str(tmp_path / "mine"), "--reference", "qwen1.5")
    assert alone.returncode == 1
    assert "--params 'me/toy=13e9'" in alone.stderr
    assert "no measured model has a total parameter count (me/toy)" in alone.stderr


def test_tasks_of_lighteval_and_opencompass_are_the_catalogs_benchmarks(tmp_path: Path) -> None:
    read = read_results(lighteval_file(tmp_path))
    assert read.measurements["benchmark"].tolist() == ["arc_challenge", "arc_challenge", "mmlu"]
    table = tmp_path / "summary.csv"
    table.write_text(
        "dataset,version,metric,mode,llama-2-7b-hf\nARC-c,-,accuracy,ppl,46.0\nmmlu,-,naive_average,ppl,46.8\n"
    )
    read = read_results(table)
    models, _ = with_sizes(read.models)
    found = run_densities(read.measurements, models, "qwen1.5").table
    assert found["benchmark"].tolist() == ["arc_challenge", "mmlu"]
    size = load_catalog().models.set_index("model").loc["Llama-2-7B", "params_total_b"] * 1e9
    assert found["n_params"].tolist() == [size, size]


# ---- cells ---------------------------------------------------------------------------------------------------


def test_a_share_outside_its_range_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    read = read_results(mmlu(tmp_path, "me/toy", 5.7, **{"acc_norm,none": 0.5}))
    assert read.measurements["metric"].tolist() == ["acc_norm"]
    assert [(note.code, note.severity) for note in read.notes] == [("share-outside", "error")]
    assert "mmlu, acc is 5.7, not a share between 0 and 1" in read.notes[0].message


def test_a_share_outside_its_range_never_becomes_a_density(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        [{"model": "toy", "task": name, "benchmark": "", "metric": "acc", "value": value, "stderr": 0.01, "n_items": 9}
         for name, value in (("mmlu", 5.7), ("winogrande", 0.7))]
    )  # fmt: skip
    models = pd.DataFrame([{"model": "toy", "params_total": 7e9}])
    result = run_densities(rows, models, "qwen1.5")
    assert result.table["benchmark"].tolist() == ["winogrande"]
    assert [note.code for note in result.notes if note.severity == "error"] == ["share-outside"]
    with pytest.raises(InputError, match=r"none of its benchmarks .* 5\.7 is not a share"):
        run_densities(rows.head(1), models, "qwen1.5")


def test_an_infinite_metric_drops_its_cell_not_the_file(tmp_path: Path) -> None:
    read = read_results(mmlu(tmp_path, "me/toy", word_perplexity=math.inf, bits_per_byte=-math.inf))
    assert read.measurements["metric"].tolist() == ["acc"]
    assert [(note.code, note.severity) for note in read.notes] == [("value-infinite", "warning")] * 2


def test_errors_that_are_none_are_left_out_with_a_note(tmp_path: Path) -> None:
    read = read_results(mmlu(tmp_path, "me/toy", **{"acc_stderr,none": -0.1}))
    assert math.isnan(cell(read, "mmlu", "acc", "stderr"))
    assert [note.code for note in read.notes] == ["stderr-left-out"]


def test_cells_of_lighteval_are_checked_as_well(tmp_path: Path) -> None:
    values = {"acc": 5.7, "em": math.nan, "perplexity": math.inf, "f1": 0.5}
    read = read_results(lighteval_file(tmp_path, results={"leaderboard|gsm8k|5": values}))
    assert read.measurements["metric"].tolist() == ["em", "f1"]
    assert [note.code for note in read.notes] == ["share-outside", "value-missing", "value-infinite"]


def test_an_error_note_of_a_reader_gives_exit_code_three(tmp_path: Path) -> None:
    mmlu(tmp_path, "Llama-2-13B", **{"acc_norm,none": 45.0})
    done = densing("density", "--results", str(tmp_path), "--reference", "qwen1.5")
    assert done.returncode == 3
    assert "45, not a share between 0 and 1" in done.stderr


TABLE = """dataset,subset,version,metric,mode,opt-125m,remarks,opt-350m
mmlu,all,-,naive_average,ppl,82.00 (7/8),first try,25.10 (8/8)
hellaswag,-,a6e128,accuracy,ppl,132.0,,32.10
piqa,-,a6e128,accuracy,ppl,nan,,-
"""


def test_opencompass_tables_with_more_columns_and_counts_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "summary_20261121_130722.csv"
    path.write_text(TABLE)
    read = read_results(path)
    told = read.measurements[["model", "task", "value"]].to_records(index=False).tolist()
    assert told == [("opt-125m", "mmlu", 0.82), ("opt-350m", "mmlu", 0.251), ("opt-350m", "hellaswag", 0.321)]
    assert read.models["model"].tolist() == ["opt-125m", "opt-350m"]
    by = {code: [note for note in read.notes if note.code == code] for code in {note.code for note in read.notes}}
    assert "subset, remarks" in by["columns-left-out"][0].message
    assert [note.details["cell"] for note in by["parts-missing"]] == ["82.00 (7/8)"]
    assert [note.severity for note in by["cell-refused"]] == ["error"]
    assert "piqa of opt-125m, accuracy, is not a number" in by["value-missing"][0].message
    assert "row 3, column opt-125m: '132.0' is not a score" in by["cell-refused"][0].message


# ---- nothing is empty in silence -----------------------------------------------------------------------------


def test_runs_below_a_date_are_found(tmp_path: Path) -> None:
    unit = RunStore(tmp_path / "2026-11-21" / "mine").unit(UnitKey({"type": "hf"}, {"name": "toy"}, {}, "ours"))
    with unit.stage() as staged:
        write_results(staged, {"toy": samples_of("toy")})
        unit.finish(staged, {"model": {"params_total": 5e6}})
    read = read_results(tmp_path)
    assert read.models.set_index("model")["params_total"].to_dict() == {"ours": 5e6}
    listed = answer("results", "list", str(tmp_path))
    assert [row["run"] for row in listed] == ["2026-11-21/mine"]


def test_samples_in_a_folder_per_date_are_read(tmp_path: Path) -> None:
    path = write_results(tmp_path / "model", {"toy": samples_of("toy")})
    samples = next(path.parent.glob("samples_*"))
    below = path.parent / "2026-11-21"
    below.mkdir()
    samples.rename(below / samples.name)
    assert len(read_results(tmp_path).items) == 4


@pytest.mark.parametrize("name", ["mine.json", "results_2020-01-01T00-00-00.json"])
def test_samples_that_pair_with_no_results_are_said(tmp_path: Path, name: str) -> None:
    path = write_results(tmp_path, {"toy": samples_of("toy")})
    path.rename(tmp_path / name)
    read = read_results(tmp_path)
    assert read.items.empty
    assert [note.code for note in read.notes] == ["items-unreadable"]
    assert "samples_toy_2026" in read.notes[0].message
    assert "rename it" in read.notes[0].message


def test_details_of_lighteval_below_a_date_are_read_or_missed_aloud(tmp_path: Path) -> None:
    stamp = "2026-11-21T13-07-22.365437"
    doc = {"query": "q", "choices": [" A", " B"], "gold_index": [0]}
    rows = [(doc, {"argmax_logits_eq_gold": [False, True], "logprobs": [-3.0, -2.0]}, {"acc": 0.0})]
    folder = tmp_path / "details" / "2026-11-21" / "org" / "gpt2" / stamp
    folder.mkdir(parents=True)
    details = folder / f"details_leaderboard|arc:challenge|25_{stamp}.parquet"
    pd.DataFrame(rows, columns=["doc", "model_response", "metric"]).to_parquet(details)
    read = read_results(lighteval_file(tmp_path))
    assert read.items["nll"].tolist() == [3.0]
    assert read.measurements["form"].tolist()[:2] == ["letters", "letters"]
    details.rename(folder / "other.parquet")
    read = read_results(lighteval_file(tmp_path))
    assert [note.code for note in read.notes] == ["items-missing"]
    assert details.name in read.notes[0].message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("samples_toy_2026-11-21T13-07-22.jsonl", "{}\n", r"1 \.jsonl; samples alone"),
        ("results.json.gz", "x", r"no \.json, \.csv or \.eval file there, but 1 \.gz"),
        ("results_x.json", POINTER, "a Git LFS pointer.*git lfs pull"),
        ("odd_name.json", "{", "not JSON"),
        ("results_x.json", '{"results": {}, "configs": {}}', "holds no measurement"),
    ],
)
def test_a_folder_without_anything_usable_says_what_stands_there(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_results(tmp_path)


def test_an_empty_folder_is_empty(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="but nothing"):
        read_results(tmp_path)


def test_files_of_other_names_are_read_and_damaged_ones_are_said(tmp_path: Path) -> None:
    mmlu(tmp_path, "Llama-2-13B").rename(tmp_path / "eval-13b.json")
    (tmp_path / "eval-70b.json").write_text("{")
    read = read_results(tmp_path)
    assert read.measurements["model"].tolist() == ["Llama-2-13B"]
    assert [note.code for note in read.notes] == ["file-unreadable"]
    assert "eval-70b.json" in read.notes[0].message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_refused_wherever_a_file_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "results_x.json"
    os.mkfifo(pipe)
    for read in (read_results, read_cells):
        with pytest.raises(InputError, match="a named pipe, not a file"):
            read(pipe)
    with pytest.raises(InputError, match="a named pipe"):
        read_results(tmp_path)
    path = write_results(tmp_path / "run", {"toy": samples_of("toy")})
    samples = next(path.parent.glob("samples_*"))
    samples.unlink()
    os.mkfifo(samples)
    assert "a named pipe" in read_results(path).notes[0].message


def test_a_shells_own_pipe_is_read() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        stream.write("params,score\n")
    assert read_text(Path(f"/dev/fd/{reading}"), "pipe") == "params,score\n"
    os.close(reading)


def test_a_pointer_in_the_place_of_samples_is_named(tmp_path: Path) -> None:
    path = write_results(tmp_path, {"toy": samples_of("toy")})
    next(tmp_path.glob("samples_*")).write_text(POINTER)
    assert "Git LFS pointer" in read_results(path).notes[0].message


def test_a_results_file_in_memory_is_as_good(tmp_path: Path) -> None:
    content = results_of({"toy": samples_of("toy")})
    content["samples"] = {"toy": samples_of("toy")}
    assert len(read_results(write_json(tmp_path / "any.json", content)).items) == 4
