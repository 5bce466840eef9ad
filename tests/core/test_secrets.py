"""Credentials: taken out of whatever is written, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from densing.core import is_secret_name, mask, secrets_of, strip_secrets

NAMES = [
    "api_key", "apiKey", "API_KEY", "openai_api_key", "token", "hf_token", "HF_TOKEN", "use_auth_token",
    "auth_token", "access_token", "password", "db_password", "passwd", "secret", "client_secret",
    "secret_access_key", "aws_access_key_id", "Authorization", "cookie", "credentials", "x-api-key",
    "private_key", "OPENAI_API_KEY", "accessToken",
]  # fmt: skip
HARMLESS = [
    "tokenizer", "max_tokens", "tokens", "num_tokens", "eos_token", "pad_token", "bos_token_id", "add_bos_token",
    "think_end_token", "tokenized_requests", "key", "keys", "gold_nats_per_token", "author", "monkey", "keyboard",
    "pretrained", "secretary", "n_tokens",
]  # fmt: skip

secret_text = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789", min_size=16, max_size=40)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("abc xyz", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(HARMLESS), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("name", NAMES)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)
    assert strip_secrets({name: "abc123"}) == {name: "***"}
    assert "abc123" not in strip_secrets(f"pretrained=x,{name}=abc123,dtype=float32")
    assert strip_secrets(["--" + name, "abc123", "next"]) == ["--" + name, "***", "next"]


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_names(name: str) -> None:
    assert not is_secret_name(name)
    assert strip_secrets({name: "abc"}) == {name: "abc"}
    assert strip_secrets(f"a=1,{name}=abc") == f"a=1,{name}=abc"


@given(plain)
def test_what_holds_no_secret_stays(value: Any) -> None:
    assert strip_secrets(value) == value


@given(plain, st.sampled_from(NAMES), secret_text, st.integers(0, 3))
def test_a_secret_anywhere_is_gone(value: Any, name: str, secret: str, depth: int) -> None:
    inner: Any = {name: secret, "rest": value}
    for _ in range(depth):
        inner = [inner, {"more": (inner,)}]
    shown = strip_secrets(inner)
    assert secret not in json.dumps(shown, default=str)
    assert strip_secrets(shown) == shown
    assert secrets_of(inner) == (secret,)
    assert secret not in mask(f"failed with {secret}!", secrets_of(inner))


@given(secret_text, st.text("abc ,=/:", max_size=10))
@example("0123456789abcdef", "")
def test_text_shapes(secret: str, around: str) -> None:
    for text in (
        f"{around} https://me:{secret}@host.org/v1",
        f"{around} https://{secret}@host.org",
        f"{around} Authorization: Bearer {secret}",
        f'{around} {{"authorization": "Basic {secret}"}}',
        f"{around} curl -H 'Authorization: {secret}'",
        f"{around} hf_{secret}",
        f"{around} sk-{secret}",
        f'{around} {{"api_key": "{secret}"}}',
        f"{around} https://host/path?api_key={secret}&x=1",
        f"{around} token={secret}",
        f"{around} env=token={secret}",
        f'{around} password="{secret}, {secret}"',
    ):
        assert secret not in strip_secrets(text), text


def test_flags_are_no_secrets() -> None:
    args = {"token": True, "use_auth_token": None, "api_key": "", "eos_token": "</s>", "think_token": "<think>"}
    assert strip_secrets(args) == args
    assert secrets_of(args) == ()


def test_values_of_the_environment_are_found_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_KEY", "q1w2e3r4t5")
    monkeypatch.setenv("SHORT_TOKEN", "ab")
    assert strip_secrets({"note": "server said q1w2e3r4t5 is wrong, ab"}) == {"note": "server said *** is wrong, ab"}


def test_bytes_dataclasses_and_tuples() -> None:
    from densing.core.notes import Note

    assert strip_secrets(b"token=abcdef") == "token=***"
    assert strip_secrets(Note("c", "info", "m", {"password": "x"}))["details"] == {"password": "***"}
    assert strip_secrets(("a", {"token": "x"})) == ("a", {"token": "***"})
