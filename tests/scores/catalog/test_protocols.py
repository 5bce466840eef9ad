"""How scores were measured: what the references store, what results state, and what becomes of a difference."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import ArtefactError, InputError, UnknownNameError
from densing.scores.catalog import load_catalog
from densing.scores.catalog.protocols import (
    DIFFERS,
    FORMS,
    SAME,
    UNKNOWN,
    Protocol,
    compare,
    evaluator_protocol,
    known_protocol,
    parse_protocol,
    stated,
    verdict,
)
from densing.scores.density import catalog_densities, combined_densities, run_densities, table_densities
from densing.scores.evals import read_results
from densing.scores.evals.measurements import Measurements
from densing.scores.fit import fit_law
from densing.scores.laws import get_law
from densing.scores.references import available_benchmarks, family_names, load_reference, loss_reference
from densing.scores.references.reference import from_table_fit
from tests.support.command import answer, densing
from tests.support.eval_files import write_json

LETTERS = ["A", "B", "C", "D"]


def results(
    folder: Path, task: str, scores: dict[str, float], shots: int, choices: Any = "choices", **config: Any
) -> Measurements:
    """A results file of lm-eval on one task of a model of 7e9 parameters, read."""
    configuration = {"task": task, "output_type": "multiple_choice", "doc_to_choice": choices, "num_fewshot": shots}
    values = {f"{metric},none": value for metric, value in scores.items()}
    content = {
        "results": {task: values | {f"{metric}_stderr,none": 0.004 for metric in scores}},
        "configs": {task: configuration | config},
        "n-shot": {task: shots},
        "config": {"model": "hf", "model_args": "pretrained=me/toy", "model_num_parameters": 7e9},
    }
    return read_results(write_json(folder / "results_2026-11-21T13-07-22.365437.json", content))


def on(read: Measurements, reference: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The one row of densities, and the codes and severities of the notes about protocols."""
    result = run_densities(read.measurements, read.models, reference)
    assert len(result.table) == 1
    notes = [(note.code, note.severity) for note in result.notes if note.code.startswith("protocol-")]
    return result.table.iloc[0].to_dict(), notes


# ---- what the references store -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in family_names() if name != "densing-paper"])
def test_every_shipped_reference_stores_the_protocol_of_each_benchmark_with_its_source(name: str) -> None:
    catalog = load_catalog()
    for benchmark in available_benchmarks(name):
        reference = load_reference(name, benchmark)
        for part in reference.benchmarks:
            protocol = reference.protocol(part)
            assert protocol.metric, (benchmark, part)
            assert protocol.form in FORMS, (benchmark, part)
            assert protocol.source, (benchmark, part)
            if part != "xwinograd" or name == "qwen2.5":
                assert protocol.shots is not None, (benchmark, part)
            if "tokens" not in reference.given:
                assert protocol == evaluator_protocol(catalog, reference.evaluator, part), "densing refs build"
            else:
                assert protocol == known_protocol(name, part), "densing refs build"


@pytest.mark.parametrize(
    ("reference", "benchmark", "expected"),
    [
        # Open LLM Leaderboard v1 (huggingface.co/docs/leaderboards, archive): ARC 25, HellaSwag 10, MMLU 5 shots.
        ("qwen1.5", "mmlu", (5, "letters", "accuracy", "none", "no")),
        ("llama", "hellaswag", (10, "cloze", "accuracy", "characters", "no")),
        ("pythia", "arc_challenge", (25, "cloze", "accuracy", "characters", "no")),
        # swallow-evaluation, lm-evaluation-harness-en: HellaSwag by acc.
        ("qwen2.5", "hellaswag", (4, "cloze", "accuracy", "none", "no")),
        ("qwen2.5", "bbh", (3, "generate", "exact match", "none", "yes")),
        # arXiv 2412.04403, section 2.
        ("olmo-ladder", "mmlu", (5, "cloze", "accuracy", "characters", "no")),
        ("densing-cpu", "facts", (0, "cloze", "accuracy", "none", "no")),
    ],
)
def test_protocols_are_those_of_the_evaluators_documents(
    reference: str, benchmark: str, expected: tuple[Any, ...]
) -> None:
    stored = load_reference(reference, benchmark).protocol(benchmark)
    assert (stored.shots, stored.form, stored.metric, stored.normalisation, stored.cot) == expected


def test_what_no_document_states_is_unknown() -> None:
    assert load_reference("qwen1.5", "xwinograd").protocol("xwinograd").shots is None
    shown = load_reference("qwen1.5", "xwinograd").describe()["protocols"]["xwinograd"]
    assert shown["shots"] == UNKNOWN


def test_a_loss_is_measured_per_byte_without_the_space_before_the_answer() -> None:
    loss = loss_reference(load_reference("olmo-ladder", "piqa")).protocol("piqa")
    assert (loss.metric, loss.normalisation) == ("bits per byte", "bytes of the answer")
    assert compare(stated("gold_bits_per_byte"), loss)["normalisation"] == DIFFERS


# ---- comparing -----------------------------------------------------------------------------------------------

PROTOCOLS = st.builds(
    lambda metric, shots, form, cot: stated(metric, shots=shots, form=form, cot=cot),
    st.sampled_from(["", "acc", "acc_norm", "accuracy", "exact_match", "pass@1", "pass@1 (sanitized)", "acc_bytes"]),
    st.none() | st.integers(0, 30),
    st.sampled_from(["", *FORMS]),
    st.sampled_from(["", "yes", "no"]),
)


@given(PROTOCOLS, PROTOCOLS)
def test_comparing_is_symmetric_and_the_unknown_is_never_the_same(one: Protocol, two: Protocol) -> None:
    parts = compare(one, two)
    assert parts == compare(two, one)
    for name, word in parts.items():
        if getattr(one, name) in (None, "") or getattr(two, name) in (None, ""):
            assert word == UNKNOWN
    assert DIFFERS not in compare(one, one).values()
    assert verdict(compare(one, one)) == (SAME if UNKNOWN not in compare(one, one).values() else UNKNOWN)
    assert Protocol.from_dict(one.to_dict()) == one


def test_qualifiers_of_a_metric_are_other_measurements() -> None:
    pairs = [("pass@1 (sanitized)", "pass@1 (EvalPlus)"), ("pass@1", "pass@1 (EvalPlus)"), ("pass@1", "pass@1")]
    assert [compare(stated(one), stated(two))["metric"] for one, two in pairs] == [DIFFERS, UNKNOWN, SAME]


def test_the_row_that_says_most_of_a_task_counts() -> None:
    assert known_protocol("lm-eval", "mmlu_anatomy").form == "letters"
    assert known_protocol("lm-eval", "mmlu_continuation_anatomy").form == "cloze"
    assert known_protocol("lm-eval", "mmlu_pro_math").form == "generate"


# ---- results of harnesses ------------------------------------------------------------------------------------


def test_zero_shots_against_five_are_an_error_note_and_exit_code_three(tmp_path: Path) -> None:
    read = results(tmp_path, "mmlu", {"acc": 0.55}, 0, LETTERS)
    row, notes = on(read, "qwen1.5")
    assert (row["protocol"], row["protocol_detail"]) == (DIFFERS, "shots 0, reference 5")
    assert notes == [("protocol-differs", "error")]
    done = densing("density", "--results", str(tmp_path), "--reference", "qwen1.5")
    assert done.returncode == 3
    header, line = (next(text for text in done.stdout.splitlines() if word in text) for word in ("Interval", "0.55"))
    assert header.index("Protocol") < header.index("Status")
    assert "differs" in line
    assert "me/toy, mmlu (shots 0, reference 5)" in done.stderr


@pytest.mark.parametrize(
    ("reference", "task", "metric", "shots", "choices", "protocol", "detail"),
    [
        ("qwen1.5", "mmlu", "acc", 5, LETTERS, SAME, ""),
        ("qwen1.5", "mmlu", "acc", 5, ["(A)", "(B)", "(C)", "(D)"], SAME, ""),
        ("qwen1.5", "mmlu", "acc", 5, ["yes", "no"], DIFFERS, "form cloze, reference letters"),
        ("qwen1.5", "hellaswag", "acc_norm", 10, "choices", SAME, ""),
        ("qwen1.5", "hellaswag", "acc", 10, "choices", DIFFERS, "normalisation none, reference characters"),
        ("qwen2.5", "hellaswag", "acc", 4, "choices", SAME, ""),
        ("llama", "winogrande", "acc", 5, "<function f at 0x1>", SAME, ""),
        ("pythia", "arc_challenge", "acc_norm", 25, "{{choices.text}}", SAME, ""),
        ("pythia", "arc_challenge", "acc_norm", 25, "{{choices.label}}", DIFFERS, "form letters, reference cloze"),
        ("olmo-ladder", "hellaswag", "acc_norm", 5, "choices", SAME, ""),
        ("olmo-ladder", "hellaswag", "acc_norm", 0, "choices", DIFFERS, "shots 0, reference 5"),
        ("densing-cpu", "facts", "acc", 0, ["a", "b"], SAME, ""),
        (
            "densing-cpu",
            "facts",
            "acc",
            0,
            "choices",
            UNKNOWN,
            "form unknown, reference cloze; cot unknown, reference no",
        ),
    ],
)
def test_results_of_lm_eval_are_compared_with_every_reference(
    tmp_path: Path, reference: str, task: str, metric: str, shots: int, choices: Any, protocol: str, detail: str
) -> None:
    read = results(tmp_path, task, {metric: 0.5}, shots, choices)
    # The toy ladder counts sizes without embeddings, of which results of lm-eval say nothing.
    models = read.models.assign(params_non_embedding=read.models["params_total"])
    row, notes = on(dataclasses.replace(read, models=models), reference)
    assert (row["protocol"], row["protocol_detail"]) == (protocol, detail)
    severities = {SAME: [], UNKNOWN: [("protocol-unknown", "warning")], DIFFERS: [("protocol-differs", "error")]}
    assert notes == severities[protocol]


def test_generated_answers_state_their_form_and_reasoning(tmp_path: Path) -> None:
    read = results(tmp_path, "gsm8k", {"exact_match": 0.5}, 5, output_type="generate_until")
    assert on(read, "qwen1.5")[0]["protocol"] == SAME
    read = results(tmp_path, "gsm8k_cot", {"exact_match": 0.5}, 8, output_type="generate_until")
    assert on(read, "qwen1.5")[0]["protocol_detail"] == "shots 8, reference 5"


def test_which_reading_of_generated_answers_counts_is_asked(tmp_path: Path) -> None:
    read = results(tmp_path, "gsm8k", {"exact_match": 0.4}, 5, output_type="generate_until")
    strict = read.measurements.assign(filter="strict-match")
    rows = pd.concat([strict, strict.assign(filter="flexible-extract", value=0.5)], ignore_index=True)
    question = (
        "me/toy, gsm8k: exact_match is 0.4 with strict-match, 0.5 with flexible-extract; choose which counts "
        r"\(--filter gsm8k=strict-match\); left out"
    )
    with pytest.raises(InputError, match=question):
        run_densities(rows, read.models, "qwen1.5")
    for name, score in (("strict-match", 0.4), ("flexible-extract", 0.5)):
        result = run_densities(rows, read.models, "qwen1.5", filters={"gsm8k": name})
        assert result.table["score"].tolist() == [score]
    other = results(tmp_path, "hellaswag", {"acc_norm": 0.6}, 10)
    both = pd.concat([rows, other.measurements], ignore_index=True)
    result = run_densities(both, read.models, "qwen1.5")
    assert result.table["benchmark"].tolist() == ["hellaswag"]
    assert [note.severity for note in result.notes if note.code == "filter-not-chosen"] == ["error"]
    # Readings that agree need no choice.
    same = pd.concat([strict, strict.assign(filter="flexible-extract")], ignore_index=True)
    assert run_densities(same, read.models, "qwen1.5").table["score"].tolist() == [0.4]
    with pytest.raises(InputError, match="--filter mbpp=loose: these results hold no reading of mbpp by a filter"):
        run_densities(rows, read.models, "qwen1.5", filters={"mbpp": "loose"})
    with pytest.raises(UnknownNameError, match="loose"):
        run_densities(rows, read.models, "qwen1.5", filters={"gsm8k": "loose"})


def test_the_metric_that_the_reference_was_measured_with_is_read(tmp_path: Path) -> None:
    both = {"acc": 0.5, "acc_norm": 0.6}
    assert on(results(tmp_path, "hellaswag", both, 10), "qwen1.5")[0]["score"] == 0.6
    assert on(results(tmp_path, "hellaswag", both, 4), "qwen2.5")[0]["score"] == 0.5


def test_examples_that_stand_in_the_documents_count_as_shots(tmp_path: Path) -> None:
    read = results(tmp_path, "hellaswag", {"acc_norm": 0.6}, 0, metadata={"num_fewshot": 10})
    assert read.measurements["n_shot"].tolist() == [10.0]


def test_the_old_schema_states_shots_and_metric_and_its_tasks_are_known(tmp_path: Path) -> None:
    content = {
        "results": {"hellaswag": {"acc": 0.5, "acc_norm": 0.6}, "hendrycksTest-anatomy": {"acc": 0.3}},
        "versions": {"hellaswag": 0, "hendrycksTest-anatomy": 0},
        "config": {
            "model": "hf-causal",
            "model_args": "pretrained=EleutherAI/pythia-v1.1-1.4b-deduped",
            "num_fewshot": 0,
        },
    }
    read = read_results(write_json(tmp_path / "old.json", content))
    read = dataclasses.replace(read, models=read.models.assign(params_total=1.4e9))
    row, _ = on(read, "pythia")
    assert (row["score"], row["protocol_detail"]) == (0.6, "shots 0, reference 10")
    forms = read.measurements.set_index("task")["form"]
    assert forms["hendrycksTest-anatomy"] == "", "two versions of the task differ in form"


def test_lighteval_and_opencompass_state_what_they_state(tmp_path: Path) -> None:
    general = {
        "config_general": {"model_name": "org/toy"},
        "results": {"leaderboard|arc:challenge|25": {"acc_norm": 0.5}},
    }
    read = read_results(write_json(tmp_path / "results_2026-11-21T13-07-22.json", general))
    read = dataclasses.replace(read, models=read.models.assign(params_total=1.4e9))
    assert on(read, "qwen1.5")[0]["protocol_detail"] == "form unknown, reference cloze; cot unknown, reference no"
    table = tmp_path / "summary_20261121_130722.csv"
    table.write_text("dataset,version,metric,mode,toy\ngsm8k,-,accuracy,gen,52.0\nmmlu,-,naive_average,ppl,52.0\n")
    read = read_results(table)
    result = run_densities(read.measurements, read.models.assign(params_total=7e9), "qwen1.5")
    told = result.table.set_index("benchmark")[["protocol", "protocol_detail"]]
    assert told["protocol"].tolist() == [UNKNOWN, UNKNOWN]
    assert told.loc["gsm8k", "protocol_detail"] == "shots unknown, reference 5; cot unknown, reference yes"
    assert "metric accuracy (mean of parts), reference accuracy" in told.loc["mmlu", "protocol_detail"]


def test_a_mean_is_only_as_comparable_as_its_worst_part(tmp_path: Path) -> None:
    arc = results(tmp_path, "arc_challenge", {"acc_norm": 0.4}, 5)
    hellaswag = results(tmp_path, "hellaswag", {"acc_norm": 0.5}, 0)
    rows = pd.concat([arc.measurements, hellaswag.measurements], ignore_index=True)
    table = run_densities(rows, arc.models, "olmo-ladder", denominator="total").table
    combined = table[table["benchmark"].eq("combined")].iloc[0]
    assert (combined["protocol"], combined["protocol_detail"]) == (DIFFERS, "hellaswag: shots 0, reference 5")


# ---- the catalog and users' tables -------------------------------------------------------------------------


def test_the_catalog_on_its_own_series_is_the_same_and_on_the_ladder_it_differs() -> None:
    catalog = load_catalog()
    for benchmark in ("mmlu", "mean", "bbh"):
        result = catalog_densities(catalog, load_reference("qwen1.5", benchmark))
        assert set(result.table["protocol"]) == {SAME}, benchmark
        assert not [note for note in result.notes if note.code.startswith("protocol")]
    ladder = catalog_densities(catalog, load_reference("olmo-ladder"))
    assert set(ladder.table["protocol"]) == {DIFFERS}
    expected = "arc_challenge: shots 25, reference 5; hellaswag: shots 10, reference 5"
    assert set(ladder.table["protocol_detail"]) == {expected}
    assert [note.severity for note in ladder.notes if note.code == "protocol-differs"] == ["error"]


def test_per_benchmark_densities_carry_the_worst_of_their_parts() -> None:
    catalog, mean = load_catalog(), load_reference("olmo-ladder")
    parts = [load_reference("olmo-ladder", name) for name in mean.benchmarks]
    table = combined_densities(catalog, mean, parts).table
    assert set(table["protocol"]) == {DIFFERS}
    assert table["protocol_detail"].str.contains("hellaswag: shots 10, reference 5").all()


@pytest.mark.parametrize(
    ("columns", "cells", "protocol", "detail"),
    [
        ("", "", UNKNOWN, "not stated"),
        (",n_shot,metric", ",5,acc", UNKNOWN, "form unknown, reference letters; cot unknown, reference no"),
        (",n_shot,metric,form", ",5,acc,letters", SAME, ""),
        (",shots,metric,form", ",0,acc,letters", DIFFERS, "shots 0, reference 5"),
        (",form", ",cloze", DIFFERS, "form cloze, reference letters"),
    ],
)
def test_a_table_of_scores_says_how_they_were_measured(
    tmp_path: Path, columns: str, cells: str, protocol: str, detail: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"model,params,released,benchmark,score{columns}\nMine-3B,3.1e9,2024-03-01,mmlu,0.62{cells}\n")
    row = table_densities(path, load_reference("qwen1.5", "mmlu")).table.iloc[0]
    assert row["protocol"] == protocol
    assert row["protocol_detail"].startswith(detail)


def test_a_form_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("model,params,released,benchmark,score,form\nMine-3B,3.1e9,2024-03-01,mmlu,0.62,essay\n")
    with pytest.raises(InputError, match="'essay' is not one of cloze, letters, generate"):
        table_densities(path, load_reference("qwen1.5", "mmlu"))


# ---- references of users -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "family.csv"
    sizes = np.geomspace(1e8, 1e11, 8)
    scores = 0.25 + 0.6 / (1 + np.exp(-0.8 * (np.log(sizes) - 22)))
    path.write_text("params,score\n" + "".join(f"{n},{s}\n" for n, s in zip(sizes, scores, strict=True)))
    return path


def test_a_users_reference_is_unknown_until_its_protocol_is_given(table: Path, tmp_path: Path) -> None:
    read = results(tmp_path, "mmlu", {"acc": 0.55}, 0, LETTERS)
    fit = ["fit", str(table), "--law", "logistic", "--floor", "0.25", "--bootstrap", "50"]
    given = ("", "shots=5,form=letters,metric=acc", "shots=0,form=letters,metric=acc")
    verdicts = []
    for number, protocol in enumerate(given):
        reference = tmp_path / f"reference{number}.json"
        done = densing(*fit, "--out", str(reference), *(["--protocol", protocol] if protocol else []))
        assert done.returncode == 0, done.stderr
        result = run_densities(read.measurements, read.models, str(reference), benchmark="mmlu", denominator="total")
        verdicts.append(result.table.iloc[0]["protocol"])
    assert verdicts == [UNKNOWN, DIFFERS, SAME]
    shown = answer("refs", "show", str(reference), "--benchmark", "mmlu")
    assert shown["protocols"]["mmlu"]["shots"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shots=many", "shots is 'many'"),
        ("shots=-1", "shots is -1.0"),
        ("form=essay", "one of cloze, letters, generate"),
        ("cot=maybe", "one of yes, no"),
        ("examples=5", "'examples' is not a part"),
        ("shots", "'shots' has no value"),
    ],
)
def test_protocols_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_protocol(text)


def test_a_fit_from_before_protocols_were_stored_is_unknown(tmp_path: Path) -> None:
    document = json.loads(load_reference("qwen1.5", "mmlu").fit.to_json())
    del document["meta"]["reference"]["protocols"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    assert load_reference(str(path)).protocol("mmlu") == Protocol()
    read = results(tmp_path / "run", "mmlu", {"acc": 0.55}, 5, LETTERS)
    models = read.models.assign(params_non_embedding=read.models["params_total"])
    row, notes = on(dataclasses.replace(read, models=models), str(path))
    assert (row["protocol"], row["protocol_detail"]) == (UNKNOWN, "reference's not stored")
    assert notes == [("protocol-unknown", "warning")]
    document["meta"]["reference"]["protocols"] = {"mmlu": {"shots": "five"}}
    path.write_text(json.dumps(document))
    with pytest.raises(ArtefactError, match="shots is 'five'"):
        load_reference(str(path))


def test_a_law_fitted_in_python_may_carry_a_protocol() -> None:
    x = {"params": np.geomspace(1e8, 1e11, 8)}
    y = 0.25 + 0.6 / (1 + np.exp(-0.8 * (np.log(x["params"]) - 22)))
    fit = fit_law(get_law("logistic", floor=0.25), x, y, loss="raw", meta={"protocol": {"shots": 5}})
    assert from_table_fit(fit, "mine", "mmlu").protocol("mmlu").shots == 5
