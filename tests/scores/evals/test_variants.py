"""Task variants that measure the gold answer's loss, and tasks from a user's own targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from densing.core.errors import InputError, TableError
from densing.scores.evals.items import item_table
from densing.scores.evals.variants import gold_variant, read_task_file, write_gold_variant, write_target_tasks


def test_gold_variant_keeps_the_prompt() -> None:
    config = {
        "task": "sums",
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "answer",
        "target_delimiter": "\n",
        "generation_kwargs": {"until": ["."]},
        "metadata": {"version": 2.0, "benchmark": "sums"},
    }
    variant = gold_variant(config)
    assert variant["doc_to_target"] == "\n{{answer}}"
    assert variant["fewshot_config"] == {"doc_to_target": "answer"}
    assert variant["generation_kwargs"] is None
    assert variant["metadata"] == {"version": 2.0, "benchmark": "sums", "variant_of": "sums"}
    assert gold_variant(config | {"gen_prefix": "A:"})["doc_to_target"] == " {{answer}}"
    assert gold_variant(config, target_field="{{a.b}}")["doc_to_target"] == "\n{{a.b}}"
    for bad in ({"output_type": "multiple_choice"}, {"doc_to_target": 3}, {"doc_to_choice": ["a"]}):
        with pytest.raises(InputError, match="task sums"):
            gold_variant(config | bad)


def test_task_files_are_read_without_importing_code(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "utils.py").write_text("raise SystemExit('imported')")
    (tmp_path / "base.yaml").write_text("task: base\ndoc_to_target: !function utils.f\ntarget_delimiter: ''\n")
    (tmp_path / "task.yaml").write_text("include: base.yaml\ntask: mine\noutput_type: generate_until\n")
    assert read_task_file(tmp_path / "task.yaml")["doc_to_target"] == "utils.f"
    with pytest.raises(InputError, match="name one with target_field"):
        write_gold_variant(tmp_path / "task.yaml", tmp_path / "out")
    written = write_gold_variant(tmp_path / "task.yaml", tmp_path / "out", "answer")
    assert written.name == "mine_gold_loss.yaml"
    (tmp_path / "loop.yaml").write_text("include: loop.yaml\n")
    with pytest.raises(InputError, match="circular"):
        read_task_file(tmp_path / "loop.yaml")
    for bad in ("- a\n", "a: [", "a: !!python/object/apply:os.system ['true']"):
        (tmp_path / "bad.yaml").write_text(bad)
        with pytest.raises(InputError, match=r"bad\.yaml"):
            read_task_file(tmp_path / "bad.yaml")


def test_target_tasks_keep_texts_to_the_letter(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    rows = [
        {"id": "1", "prompt": "2+2=", "target": "{{4}} [x]"},
        {"id": "2", "prompt": "Sum: ", "target": "4"},
        {"id": "3", "prompt": "Sum:", "target": " 4\u2028\n"},
        {"id": 4, "prompt": "", "target": "free"},
    ]
    source = tmp_path / "t.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    assert write_target_tasks(source, tmp_path / "tasks", "mine") == ["mine"]
    written = [json.loads(line) for line in (tmp_path / "tasks" / "mine.jsonl").read_text().split("\n") if line]
    assert [row["target"] for row in written] == [" {{4}} [x]", "4", " 4\u2028\n", "free"]
    task = yaml.safe_load((tmp_path / "tasks" / "mine.yaml").read_text())
    assert (task["output_type"], task["doc_to_target"]) == ("loglikelihood", "target")


def test_target_tasks_of_several_benchmarks(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    source = tmp_path / "t.csv"
    source.write_text("id,prompt,target,benchmark\n1,a,b,mmlu\n2,c,d,gsm8k\n")
    assert write_target_tasks(source, tmp_path / "tasks", "mine") == ["mine_mmlu", "mine_gsm8k"]
    group = yaml.safe_load((tmp_path / "tasks" / "mine.yaml").read_text())
    assert group == {"group": "mine", "task": ["mine_mmlu", "mine_gsm8k"]}
    task = yaml.safe_load((tmp_path / "tasks" / "mine_gsm8k.yaml").read_text())
    assert task["metadata"]["benchmark"] == "gsm8k"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,prompt,target\n1,a,\n1,b,c\n1,b,c\n", "row 2, column target: empty(.|\n)*'1' occurs twice"),
        ("id,prompt\n1,a\n", "target missing"),
    ],
)
def test_wrong_targets_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TableError, match=message):
        write_target_tasks(tmp_path / "t.csv", tmp_path, "mine")


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 99])
def test_names_of_target_tasks(tmp_path: Path, name: str) -> None:
    (tmp_path / "t.csv").write_text("id,prompt,target\n1,a,b\n")
    with pytest.raises(InputError, match="task name"):
        write_target_tasks(tmp_path / "t.csv", tmp_path, name)


SUMS = """task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {place}/data.jsonl}}, cache_dir: {place}/cache}}
test_split: test
fewshot_split: test
output_type: generate_until
doc_to_text: "Q: {{{{q}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."]}}
filter_list: [{{name: first, filter: [{{function: take_first}}]}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1.0}}
"""


@pytest.mark.filterwarnings("ignore")
def test_lm_eval_asks_the_same_prompts_of_a_variant(tmp_path: Path) -> None:
    manager = pytest.importorskip("lm_eval.tasks").TaskManager
    evaluate = pytest.importorskip("lm_eval.evaluator").evaluate
    dummy = pytest.importorskip("lm_eval.models.dummy").DummyLM
    rows = [{"q": f"{i}+{i}=", "answer": str(2 * i)} for i in range(4)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "sums.yaml").write_text(SUMS.format(place=tmp_path))
    write_gold_variant(tmp_path / "sums.yaml", tmp_path)
    targets = [{"id": str(i), "prompt": "Think: ", "target": f"{{{{{i}}}}} so [1, {i}]"} for i in range(2)]
    (tmp_path / "targets.jsonl").write_text("\n".join(map(json.dumps, targets)))
    write_target_tasks(tmp_path / "targets.jsonl", tmp_path, "mine")
    loaded = manager(include_path=str(tmp_path), include_defaults=False).load(["sums", "sums_gold_loss", "mine"])
    for name, task in loaded["tasks"].items():
        task.set_config("num_fewshot", 0 if name == "mine" else 2)
        task.set_fewshot_seed(1234)
    results = evaluate(dummy(), loaded, bootstrap_iters=0, log_samples=True)
    asked = {name: [sample["arguments"][0] for sample in rows] for name, rows in results["samples"].items()}
    assert [pair[0] for pair in asked["sums"]] == [pair[0] for pair in asked["sums_gold_loss"]]
    assert asked["sums"][0][0].count("Q: ") == 3
    assert [pair[1] for pair in asked["sums_gold_loss"]] == [" 0", " 2", " 4", " 6"]
    assert asked["mine"] == [("Think: ", "{{0}} so [1, 0]"), ("Think: ", "{{1}} so [1, 1]")]
    samples, config = results["samples"]["mine"], results["configs"]["mine"]
    items = item_table(samples, config, str.split, tokenizer_name="words")
    assert items["n_tokens"].tolist() == [4, 4]
    assert items["nll"].tolist() == [-sample["resps"][0][0][0] for sample in samples]
