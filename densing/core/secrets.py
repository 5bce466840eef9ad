"""Keys, tokens and passwords: never written, never logged.

Two ways in: a value under a name that says what it is (``api_key``), and text that looks like a credential or
equals one found in the environment. Names of tokenisers and token counts are not secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import PurePath
from typing import Any

MASK = "***"
MIN_SECRET = 8
_NO_SECRET = ("", "True", "False", "None", "true", "false", "null", MASK)

_NAME = re.compile(
    r"(?:^|[_\-.])(?:apikeys?|(?:api|access|secret|private|account|subscription|service|client|signing|encryption|master"
    r"|openai|azure|anthropic|license)[_\-]?keys?(?:[_\-]id)?|secrets?|pass(?:word|wd|phrase)?|pwd|token"
    r"|credentials?|authorization|auth|bearer|cookies?|sig)$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"_KEY$")
_WORD_OF_VOCABULARY = re.compile(
    r"^(?:.*[_\-])?(?:bos|eos|pad|unk|sep|cls|mask|eot|prefix|stop|image|audio|video|special|begin|start|end|first|last"
    r"|next|per|think|tool|newline)[_\-]token$",
    re.IGNORECASE,
)
_CREDENTIAL = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_\-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w\-]{12,}"
    r"|xox[abprs]-[\w\-]{8,}|AKIA[0-9A-Z]{12,}|AIza[\w\-]{20,}|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)
_SCHEMES = ("bearer", "basic")
_BEARER = re.compile(r"\b(bearer|basic)(\s+)[^\s,;'\"]+", re.IGNORECASE)
_HEADER = re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?)(?!\s*(?:bearer|basic)\s)[^\s,;'\"]+", re.IGNORECASE)
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.\-]*://)[^/\s?#]*@", re.IGNORECASE)
_HEAD = re.compile(r"(?P<key>[A-Za-z_][\w.\-]*)['\"]?\s*[=:]\s*")
_VALUE = re.compile(r"(?P<quote>['\"])[^'\"]*(?P=quote)|[^\s,;&'\"{}\[\]]+")


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a credential.

    Examples
    --------
    >>> [is_secret_name(name) for name in ("api_key", "HF_TOKEN", "tokenizer", "max_tokens", "eos_token")]
    [True, True, False, False, False]
    """
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return bool(_NAME.search(plain)) and not _WORD_OF_VOCABULARY.match(plain)


def strip_secrets(value: Any) -> Any:
    """Return a copy of a value with every credential replaced by ``***``.

    Mappings, sequences, dataclasses and text are gone through; text also loses credentials of well-known shape,
    passwords in addresses, ``Authorization`` headers, ``api_key=...`` in argument lists, and whatever stands in a
    secret variable of the environment.

    Examples
    --------
    >>> strip_secrets({"model": "x", "api_key": "abc", "base_url": "https://me:pw@host/v1"})
    {'model': 'x', 'api_key': '***', 'base_url': 'https://***@host/v1'}
    >>> strip_secrets("pretrained=gpt2,token=hf_abcdefgh12,max_tokens=5")
    'pretrained=gpt2,token=***,max_tokens=5'
    """
    return _strip(value, _environment())


def secrets_of(value: Any) -> tuple[str, ...]:
    """Return the credentials found under secret names in nested mappings, to look for them elsewhere.

    Examples
    --------
    >>> secrets_of({"args": {"token": "hf_abc", "tokenizer": "x"}})
    ('hf_abc',)
    """
    secrets: list[str] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            if is_secret_name(str(key)) and _hides(item):
                secrets.extend(_leaves(item))
            else:
                secrets.extend(secrets_of(item))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            secrets.extend(secrets_of(item))
    return tuple(dict.fromkeys(secrets))


def mask(text: str, secrets: tuple[str, ...]) -> str:
    """Replace known credentials in a text, the longest first, and those of well-known shape.

    Examples
    --------
    >>> mask("401 for key abc123", ("abc123",))
    '401 for key ***'
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _text(text, _environment())


def _strip(value: Any, known: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {
            _strip(key, known): MASK if is_secret_name(str(key)) and _hides(item) else _strip(item, known)
            for key, item in value.items()
        }
    if is_dataclass(value) and not isinstance(value, type):
        return _strip({field.name: getattr(value, field.name) for field in fields(value)}, known)
    if isinstance(value, (list, tuple)):
        return type(value)(_pairs(value, known)) if type(value) in (list, tuple) else _pairs(value, known)
    if isinstance(value, (set, frozenset)):
        return type(value)(_strip(item, known) for item in value)
    if isinstance(value, bytes):
        return _text(value.decode("utf-8", "replace"), known)
    if isinstance(value, (str, PurePath)):
        return _text(str(value), known)
    return value


def _pairs(items: Any, known: tuple[str, ...]) -> list[Any]:
    """Strip a sequence; after a flag such as ``--api_key`` the next word is its value."""
    out: list[Any] = []
    hide = False
    for item in items:
        out.append(MASK if hide and isinstance(item, str) else _strip(item, known))
        hide = isinstance(item, str) and item.startswith("-") and is_secret_name(item.lstrip("-"))
    return out


def _hides(item: Any) -> bool:
    """Whether a value under a secret name is one: ``token=True`` only says that a stored one may be used."""
    if isinstance(item, (bool, float)) or item is None:
        return False
    # The words of a vocabulary look like <this>.
    return not isinstance(item, str) or not (item in _NO_SECRET or item.startswith("<"))


def _leaves(item: Any) -> list[str]:
    if isinstance(item, Mapping):
        return [leaf for part in item.values() for leaf in _leaves(part)]
    if isinstance(item, (list, tuple, set, frozenset)):
        return [leaf for part in item for leaf in _leaves(part)]
    return [str(item)] if _hides(item) else []


@cache
def _is_secret_variable(name: str) -> bool:
    # The shell's working directory only sounds like a password.
    return name not in ("PWD", "OLDPWD") and (is_secret_name(name) or bool(_VARIABLE.search(name)))


def _environment() -> tuple[str, ...]:
    secrets = {value for key, value in os.environ.items() if len(value) >= MIN_SECRET and _is_secret_variable(key)}
    return tuple(sorted(secrets, key=len, reverse=True))


def _text(text: str, known: tuple[str, ...]) -> str:
    for secret in known:
        text = text.replace(secret, MASK)
    text = _USERINFO.sub(rf"\g<1>{MASK}@", text)
    text = _BEARER.sub(rf"\g<1>\g<2>{MASK}", text)
    text = _HEADER.sub(rf"\g<1>{MASK}", text)
    return _CREDENTIAL.sub(MASK, _assignments(text))


def _assignments(text: str) -> str:
    """Replace what is assigned to secret names; the value of any other may hold an assignment of its own."""
    out: list[str] = []
    done = 0
    for head in _HEAD.finditer(text):
        value = _VALUE.match(text, head.end())
        if head.start() < done or value is None or not is_secret_name(head["key"]):
            continue
        quote = value["quote"] or ""
        plain = value[0].strip(quote) if quote else value[0]
        # After "Authorization: Bearer" stands the credential, and that has been taken out already.
        if _hides(plain) and plain.lower() not in _SCHEMES:
            out += [text[done : head.end()], quote, MASK, quote]
            done = value.end()
    return "".join([*out, text[done:]])
