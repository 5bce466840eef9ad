"""Losses of the gold answer: published fixtures, a plain second implementation, lm-eval's own accuracies, damage."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.scores.evals.items import (
    continuation_tokens,
    gold_index,
    item_table,
    parse_sample,
    read_samples,
    task_and_stamp,
)
from densing.scores.evals.measurements import loss_rows
from tests.support import folders
from tests.support.eval_files import choice_sample

FIXTURES = folders.DATA / "lm_eval"
TOY = FIXTURES / "run_toy" / "models__llama-0.1M"


def values(items: pd.DataFrame) -> dict[str, float]:
    """Measurements that follow from items."""
    return {row["metric"]: row["value"] for row in loss_rows(items, {})}


# ---- against the fixtures ------------------------------------------------------------------------------------


def toy(task: str) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Samples, results row and configuration of a task of the toy run."""
    results = json.loads(next(TOY.glob("results_*.json")).read_text())
    rows = list(read_samples(next(TOY.glob(f"samples_{task}_2026*.jsonl"))))
    return rows, results["results"][task], results["configs"][task]


def test_losses_of_toy_mc_are_those_that_toy_mc_loss_measured() -> None:
    # toy_mc_loss computes the gold loss inside lm-eval (process_results); toy_mc only stores log-likelihoods.
    rows, _, config = toy("toy_mc")
    _, measured, _ = toy("toy_mc_loss")
    found = values(item_table(rows, config))
    assert found["gold_nats"] == pytest.approx(measured["gold_nll,none"], rel=1e-12)
    assert found["gold_bits_per_byte_pooled"] == pytest.approx(measured["gold_bpb,none"], rel=1e-12)
    assert found["p_gold"] == pytest.approx(measured["correct_prob,none"], rel=1e-6)
    stderr = {row["metric"]: row["stderr"] for row in loss_rows(item_table(rows, config), {})}
    assert stderr["gold_nats"] == pytest.approx(measured["gold_nll_stderr,none"], rel=1e-12)
    items = item_table(toy("toy_mc_loss")[0], config)
    np.testing.assert_allclose(items["nll"], items["metric_gold_nll"], rtol=1e-12)
    np.testing.assert_allclose(items["margin"], items["metric_margin"], rtol=1e-12)
    np.testing.assert_allclose(items["p_gold"], items["metric_correct_prob"], rtol=1e-6)


@pytest.mark.parametrize("task", ["toy_mc", "toy_mc_csv", "toy_mc_loss", "toy_ll", "toy_gen", "toy_ppl", "toy_wg"])
def test_file_and_memory_agree(task: str) -> None:
    rows, _, config = toy(task)
    memory = json.loads((FIXTURES / "run_toy" / "simple_evaluate_in_memory.json").read_text())["samples"][task]
    pd.testing.assert_frame_equal(item_table(rows, config), item_table(memory, config))
    for config_part in (config, None):
        own = item_table(rows, config_part)
        for ours, theirs in (("correct", "metric_acc"), ("correct_norm", "metric_acc_norm")):
            if theirs in own and own[ours].notna().any():
                assert own[ours].tolist() == own[theirs].tolist()


def test_rolling_and_cloze() -> None:
    rows, measured, config = toy("toy_ppl")
    assert values(item_table(rows, config))["gold_bits_per_byte_pooled"] == pytest.approx(
        measured["bits_per_byte,none"], rel=1e-12
    )
    rows, measured, config = toy("toy_ll")
    found = values(item_table(rows, config))
    assert math.exp(found["gold_nats"]) == pytest.approx(measured["perplexity,none"], rel=1e-9)
    assert item_table(rows, config)["margin"].isna().all()


@pytest.mark.parametrize(
    ("task", "bits"),
    [("arc_easy", 1.175), ("hellaswag", 1.014), ("piqa", 1.117), ("sciq", 1.037), ("winogrande", 1.240)],
)
def test_bits_per_byte_of_smollm2(task: str, bits: float) -> None:
    # Expected values: tests/data/README.md, from SmolLM2-135M on the first 40 documents.
    stored = json.loads((FIXTURES / "real_smollm2" / "per_doc_numbers.json").read_text())
    docs = stored.get(f"{task}_local") or stored[task]
    rows = [choice_sample(i, *_numbers(doc)) for i, doc in enumerate(docs)]
    items = item_table([row | {"arguments": _of_lengths(doc)} for row, doc in zip(rows, docs, strict=True)])
    assert values(items)["gold_bits_per_byte_pooled"] == pytest.approx(bits, abs=5e-4)


def _numbers(doc: dict[str, Any]) -> tuple[list[float], int]:
    return doc["loglik"], doc["gold"]


def _of_lengths(doc: dict[str, Any]) -> list[list[str]]:
    """Continuations of the stored lengths: é is one character of two bytes."""
    texts = []
    for index, (chars, octets) in enumerate(zip(doc["continuation_chars"], doc["continuation_bytes"], strict=True)):
        wide = octets - chars
        texts.append(" " + "é" * wide + chr(ord("a") + index) * (chars - wide - 1))
    return [["context", text] for text in texts]


# ---- against a plain second implementation -------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Multiple-choice documents with distinct texts."""
    rows = []
    for i in range(draw(st.integers(1, 5))):
        texts = draw(st.lists(TEXTS, min_size=2, max_size=4, unique=True))
        choices = [" c" + text for text in texts]
        logs = draw(st.lists(st.floats(-500, -1e-3), min_size=len(texts), max_size=len(texts)))
        gold = draw(st.integers(0, len(texts) - 1))
        rows.append({"choices": choices, "logs": logs, "gold": gold, "id": i})
    return rows


def plain(docs: list[dict[str, Any]]) -> dict[str, float]:
    """The same aggregates with loops and nothing else."""
    nll = [-d["logs"][d["gold"]] for d in docs]
    texts = [d["choices"][d["gold"]] for d in docs]
    octets = [len(t.encode()) for t in texts]
    tokens = [len(t.split()) for t in texts]
    n = len(docs)
    p = [1 / sum(math.exp(min(other - d["logs"][d["gold"]], 700)) for other in d["logs"]) for d in docs]
    return {
        "gold_nats": sum(nll) / n,
        "gold_nats_per_char": sum(x / len(t) for x, t in zip(nll, texts, strict=True)) / n,
        "gold_bits_per_byte": sum(x / b / math.log(2) for x, b in zip(nll, octets, strict=True)) / n,
        "gold_bits_per_byte_pooled": sum(nll) / sum(octets) / math.log(2),
        "gold_nats_per_token": sum(nll) / sum(tokens),
        "p_gold": sum(p) / n,
    }


@given(documents(), st.booleans(), st.booleans())
def test_losses_match_a_plain_implementation(docs: list[dict[str, Any]], strings: bool, shuffled: bool) -> None:
    rows = [
        choice_sample(d["id"], d["logs"], d["gold"], choices=d["choices"], strings=strings, context="q") for d in docs
    ]
    items = item_table(rows[::-1] if shuffled else rows, {"doc_to_target": "{{x}}", "doc_to_choice": "y"}, str.split)
    found = values(items)
    # str.split counts words; where a text has none, tokens are not reported.
    expected = plain(docs) if all(d["choices"][d["gold"]].split() for d in docs) else {}
    assert {k: v for k, v in found.items() if k in expected} == pytest.approx(expected, rel=1e-9)
    assert items["doc_id"].tolist() == [d["id"] for d in docs]
    best = [float(max(range(len(d["logs"])), key=lambda j: (d["logs"][j], -j)) == d["gold"]) for d in docs]
    assert items["correct"].tolist() == best
    margin = [d["logs"][d["gold"]] - max(v for j, v in enumerate(d["logs"]) if j != d["gold"]) for d in docs]
    np.testing.assert_allclose(items["margin"], margin)


def test_delta_method_agrees_with_the_bootstrap() -> None:
    rng = np.random.default_rng(5)
    octets = rng.integers(5, 60, 400).astype(float)
    nll = octets * rng.gamma(8.0, 0.1, 400)
    frame = pd.DataFrame({"nll": nll, "n_chars": octets, "n_bytes": octets, "n_tokens": octets / 4, "p_gold": 0.5})
    rows = {row["metric"]: row for row in loss_rows(frame, {})}
    draws = rng.integers(0, 400, (4000, 400))
    pooled = nll[draws].sum(1) / octets[draws].sum(1)
    ratio = rows["gold_bits_per_byte_pooled"]["stderr"] * math.log(2) / pooled.std()
    assert ratio == pytest.approx(1, abs=0.06)
    assert rows["gold_nats_per_token"]["stderr"] == pytest.approx(4 * pooled.std(), rel=0.06)


# ---- tokens --------------------------------------------------------------------------------------------------


# The first example imports lm-eval.
@given(st.text(max_size=8), TEXTS)
def test_token_counts_match_lm_eval(context: str, continuation: str) -> None:
    lm_eval = pytest.importorskip("lm_eval.api.model")

    class Words(lm_eval.TemplateLM):  # type: ignore[name-defined,misc]
        """A model that only tokenises: two characters are a token."""

        backend = "causal"
        eot_token_id = 0
        loglikelihood_rolling = generate_until = None

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return pairs(string)

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> Any:
            return [(len(request[2]), False) for request in requests]

    def pairs(text: str) -> list[int]:
        return [hash(text[i : i + 2]) for i in range(0, len(text), 2)]

    Words.__abstractmethods__ = frozenset()
    if context.strip() or not context:
        expected = Words().loglikelihood([type("Request", (), {"args": (context, continuation)})], disable_tqdm=True)[
            0
        ][0]
        assert continuation_tokens(context, continuation, pairs) == expected


# ---- traps of lm-eval's samples: order of requests, filters, gold indices, damaged rows -----------------------


def test_eleventh_request_comes_after_the_third() -> None:
    row = choice_sample(0, [-float(i + 1) for i in range(12)], 10)
    row["arguments"] = dict(sorted(row["arguments"].items()))
    assert list(row["arguments"])[2] == "gen_args_10"
    assert parse_sample(row).requests[10][1] == " answer 10"
    assert item_table([row])["nll"].tolist() == [11.0]


def test_documents_of_several_filters_are_counted_once() -> None:
    base = {"doc_id": 3, "doc": {}, "target": "7", "arguments": [["2+5=", {"until": ["."]}]], "resps": [["seven"]]}
    rows = [
        {**base, "filter": name, "metrics": ["exact_match"], "exact_match": value}
        for name, value in (("strict-match", 0.0), ("flexible-extract", 1.0))
    ]
    items = item_table(rows)
    assert items.loc[0, ["metric_exact_match,strict-match", "metric_exact_match,flexible-extract"]].tolist() == [
        0.0,
        1.0,
    ]
    assert len(items) == 1
    assert items.loc[0, "gold"] == -1
    assert loss_rows(items, {}) == []


def test_winogrande_style() -> None:
    def row(doc: dict[str, Any]) -> dict[str, Any]:
        pairs = [["the jar", " was wide."], ["the crate", " was wide."]]
        return {
            "doc_id": 0,
            "doc": doc,
            "target": "was wide.",
            "arguments": pairs,
            "resps": [[[-2.0, False]], [[-1.0, False]]],
        }

    assert gold_index(parse_sample(row({"answer": "2"}))) == 1
    assert gold_index(parse_sample(row({"label": 1}))) == 1
    assert gold_index(parse_sample(row({"gold": "0"}))) == 0
    items = item_table([row({"answer": "2"})])
    assert items[["correct", "nll"]].iloc[0].tolist() == [1.0, 1.0]
    assert items["correct_norm"].isna().all()
    for doc in ({}, {"answer": "3"}, {"answer": "crate"}):
        with pytest.raises(InputError):
            gold_index(parse_sample(row(doc)))
        assert item_table([row(doc)])[["gold", "n_choices"]].iloc[0].tolist() == [-1, 2]


@pytest.mark.parametrize(
    ("config", "doc", "accuracy", "gold"),
    [
        # A rendered template of digits is an index for lm-eval, the text of a field is not.
        ({"doc_to_target": "{{a}}", "doc_to_choice": "{{c}}"}, {"a": "1"}, None, 1),
        ({"doc_to_target": "a", "doc_to_choice": "{{c}}"}, {"a": "1"}, None, 0),
        ({"doc_to_target": "a", "doc_to_choice": "{{c}}"}, {"a": 1}, None, 1),
        # Without the configuration the stored accuracy decides (the best choice here is number 1), else the text.
        ({}, {}, 1.0, 1),
        ({}, {}, 0.0, 0),
        ({}, {}, None, 0),
    ],
)
def test_digits_as_target(config: dict[str, Any], doc: dict[str, Any], accuracy: float | None, gold: int) -> None:
    row = choice_sample(0, [-3.0, -2.0, -4.0], 1, choices=[" 1", " 2", " 3"])
    row |= {"doc": doc} if accuracy is None else {"doc": doc, "acc": accuracy, "metrics": ["acc"]}
    assert gold_index(parse_sample(row), config) == gold


def test_mutual_information_requests_are_left_out() -> None:
    row = choice_sample(0, [-3.0, -2.0], 0, choices=[" a", " b"], strings=False, acc_mutual_info=1.0)
    row["arguments"] += [["", " a"], ["", " b"]]
    row["resps"] += [[[-1.0, False]], [[-9.0, False]]]
    assert item_table([row])[["n_choices", "nll", "correct"]].iloc[0].tolist() == [2.0, 3.0, 0.0]


def test_losses_that_are_not_finite() -> None:
    rows = [choice_sample(0, [math.nan, -1.0], 0), choice_sample(1, [-math.inf, -math.inf], 1)]
    items = item_table(rows)
    assert items["nll"].isna().tolist() == [True, False]
    assert math.isinf(items["nll"][1])
    assert items["p_gold"].isna().all()
    assert loss_rows(items, {}) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"doc_id": None}, "doc_id is 'None'"),
        ({"arguments": "x"}, "not requests as lm-eval writes them"),
        ({"arguments": []}, "not requests as lm-eval writes them"),
        ({"arguments": {"first": {"arg_0": "a"}}}, "expected gen_args_0"),
        ({"arguments": {"gen_args_0": 3}}, "are not objects"),
        ({"arguments": [["a", "b"], ["a", {}]], "resps": [[[-1, False]], ["x"]]}, "several kinds"),
        ({"arguments": [["a", 3], ["a", "b"]]}, "several kinds"),
        ({"resps": []}, "do not answer"),
        ({"resps": [[["abc", "False"]], [["-1", "False"]]]}, "'abc' is not a number"),
    ],
)
def test_rows_that_are_no_samples(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        item_table([choice_sample(0, [-1.0, -2.0], 0) | change])


LEAVES = st.none() | st.integers(-2, 3) | st.text(max_size=3) | st.floats()
ANYTHING = st.recursive(
    LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=2), max_leaves=6
)
FIELDS = st.sampled_from(["doc_id", "arguments", "resps", "target", "metrics", "filter", "doc"])


@given(
    st.dictionaries(FIELDS, ANYTHING), st.none() | st.sampled_from(["multiple_choice", "loglikelihood_rolling", "x"])
)
def test_any_row_gives_items_or_an_error_of_ours(row: dict[str, Any], kind: str | None) -> None:
    with contextlib.suppress(InputError):
        assert len(item_table([choice_sample(0, [-1.0, -2.0], 0) | row], {"output_type": kind})) == 1


def test_names_of_samples_files() -> None:
    assert task_and_stamp("samples_a_b_2026_c_2026-11-21T13-07-22.jsonl") == ("a_b_2026_c", "2026-11-21T13-07-22")
    assert task_and_stamp("samples_2026-11-21T13-07-22.jsonl") is None
