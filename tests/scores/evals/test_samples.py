"""Traps of lm-eval's samples: order of requests, filters, gold indices, damaged rows."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.scores.evals.losses import gold_index, item_table
from densing.scores.evals.measurements import loss_rows
from densing.scores.evals.samples import parse_sample, task_and_stamp
from tests.support.eval_files import choice_sample


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
        ({"arguments": {"gen_args_0": 3}}, "something else than objects"),
        ({"arguments": [["a", "b"], ["a", {}]], "resps": [[[-1, False]], ["x"]]}, "several kinds"),
        ({"arguments": [["a", 3], ["a", "b"]]}, "several kinds"),
        ({"resps": []}, "do not answer"),
        ({"resps": [[["abc", "False"]], [["-1", "False"]]]}, "'abc' is no number"),
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
