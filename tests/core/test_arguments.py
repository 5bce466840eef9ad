"""Arguments as text, against lm-eval's own reader of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.arguments import literal, parse_pairs
from densing.core.errors import InputError

VALUE = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(str),
    st.booleans().map(str),
    st.text("abc.-_/:0123", max_size=8),
)


@given(st.dictionaries(st.text("abcdef_", min_size=1, max_size=6), VALUE, max_size=4))
def test_pairs_are_read_as_lm_eval_reads_them(pairs: dict[str, str]) -> None:
    """Source: EleutherAI lm-evaluation-harness 0.4.13, ``_cli/utils.py``, its own reader of ``--model_args``."""
    theirs = pytest.importorskip("lm_eval._cli.utils").key_val_to_dict
    text = ",".join(f"{key}={value}" for key, value in pairs.items())
    assert parse_pairs([text], "--model_args") == theirs(text)


@given(st.text(max_size=20))
def test_a_value_without_marks_of_a_literal_is_its_text(text: str) -> None:
    plain = "x" + "".join(letter for letter in text if letter.isalnum())
    assert literal(plain) == plain
    # Anything else is something, too.
    literal(text)


def test_json_arguments() -> None:
    assert parse_pairs(['{"a": {"b": 1}}', "c=2"], "--model_args") == {"a": {"b": 1}, "c": 2}
    with pytest.raises(InputError, match="--model_args"):
        parse_pairs(["{a: 1"], "--model_args")
