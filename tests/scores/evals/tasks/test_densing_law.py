"""Suite densing-law: a small sample in the form of the data card, which we wrote; what is asked and what is counted."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from densing.core import InputError, UnavailableError
from densing.scores.evals.identity import TaskIdentity, unit_key
from densing.scores.evals.items import item_table
from densing.scores.evals.plan import Settings
from densing.scores.evals.session import suite_folder
from densing.scores.evals.tasks import densing_law

CHOICE = {
    "input": "Which of these is a prime?\nA. 21\nB. 23\nC. 25\nD. 27\nAnswer:",
    "output": " 21 = 3 · 7, 25 = 5 · 5 and 27 = 3 · 9; only 23 has no divisor.\nThe answer is B.",
}
STEPS = {"input": "Tom has 3 bags of 4 apples. How many?", "output": "3 · 4 = 12.\nThe answer is 12."}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the data set: one folder, one file of lines, one list, one table."""
    (tmp_path / "MMLU").mkdir()
    rows = [CHOICE, {**CHOICE, "output": " B."}]
    (tmp_path / "MMLU" / "high_school_mathematics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "math_cot.json").write_text(json.dumps([STEPS]))
    pd.DataFrame([STEPS, CHOICE]).to_parquet(tmp_path / "human-eval.parquet")
    (tmp_path / "README.md").write_text("mbpp")
    return tmp_path


def load_tasks(copy: Path, *names: str) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    folder = str(suite_folder("densing-law"))
    manager = TaskManager(include_path=folder, include_defaults=False, metadata={"densing_law": str(copy)})
    found: dict[str, Any] = manager.load(list(names))["tasks"]
    return found


def test_the_answer_alone_is_asked_for_and_counted(copy: Path) -> None:
    tasks = load_tasks(copy, "densing_law_mmlu", "densing_law_math")
    (doc,) = [
        doc for doc in tasks["densing_law_mmlu"].eval_docs if "prime" in doc["context"] and len(doc["answer"]) > 9
    ]
    request = tasks["densing_law_mmlu"].construct_requests(doc, tasks["densing_law_mmlu"].fewshot_context(doc, 0))
    # The question with every option, then the analysis and the label, to the letter.
    assert request.args == (CHOICE["input"], CHOICE["output"])
    task = tasks["densing_law_math"]
    (steps,) = task.eval_docs
    answer = f"\n{STEPS['output']}"
    assert task.construct_requests(steps, task.fewshot_context(steps, 0)).args == (STEPS["input"], answer)
    sample = task.process_results(steps, [(-30.0, False)])
    size = len(answer.encode())
    assert sample == {"bits_per_byte": pytest.approx(30 / math.log(2) / size)}
    row = {"doc_id": 0, "doc": dict(steps), "target": answer, "arguments": [[STEPS["input"], answer]],
           "resps": [[[-30.0, False]]], "metrics": ["bits_per_byte"], **sample}  # fmt: skip
    (item,) = item_table([row], {}, model="m", task="densing_law_math").to_dict("records")
    assert (item["nll"], item["n_bytes"]) == (30.0, size)


def test_every_kind_of_file_is_read_and_order_is_fixed(copy: Path) -> None:
    count = {name: len(densing_law.load(name, str(copy))["test"]) for name in ("mmlu", "math", "humaneval")}
    assert count == {"mmlu": 2, "math": 1, "humaneval": 2}
    first = densing_law.load("mmlu", str(copy))["test"]["id"]
    assert first == densing_law.load("mmlu", str(copy))["test"]["id"] and len(set(first)) == 2
    renamed = [{"problem": row["input"], "solution": row["output"]} for row in (STEPS,)]
    (copy / "math_cot.json").write_text(json.dumps(renamed))
    with pytest.raises(
        InputError, match=r"math_cot\.json, row 1: no text in input or output; it has problem, solution"
    ):
        densing_law.load("math", str(copy))
    columns = {"densing_law_input": "problem", "densing_law_output": "solution"}
    assert densing_law.load("math", str(copy), **columns)["test"]["context"] == [STEPS["input"]]


def test_what_is_missing_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no file named after mbpp; there are MMLU/high_school_mathematics\.jsonl"):
        densing_law.load("mbpp", str(copy))
    with pytest.raises(InputError, match="densing_law=nowhere: no such folder"):
        densing_law.load("mmlu", "nowhere")
    (copy / "math_cot.json").write_text('{"input": "x"}')
    with pytest.raises(InputError, match="a list of objects was expected"):
        densing_law.load("math", str(copy))
    (copy / "human-eval.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"human-eval\.parquet: not readable as Parquet"):
        densing_law.load("humaneval", str(copy))

    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(UnavailableError, match=r"\(no network\); fetch it where .* --metadata densing_law=FOLDER"):
        densing_law.load("mmlu")


def test_the_group_holds_the_papers_five_benchmarks() -> None:
    names = sorted(path.stem for path in suite_folder("densing-law").glob("densing_law_*.yaml"))
    assert names == sorted(f"densing_law_{name}" for name in densing_law.NAMES)
    group = (suite_folder("densing-law") / "densing_law.yaml").read_text()
    assert sorted(re.findall(r"- (\w+)", group)) == names


def test_a_copy_that_moved_is_the_same_unit() -> None:
    task = TaskIdentity("densing_law_math", {"name": "densing_law_math"}, {}, {}, 1, generates=False)
    keys = [
        unit_key({}, task, Settings(), {"densing_law": folder, "densing_law_input": column}, "m").digest
        for folder, column in (("a", "input"), ("b", "input"), ("b", "problem"))
    ]
    assert keys[0] == keys[1] != keys[2]
