"""Arguments as text: ``key=value,key2=value2`` or one JSON object, read as lm-eval's command line reads them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Any

from densing.core.errors import InputError


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Read arguments as lm-eval's ``--model_args`` does; later ones win.

    Parameters
    ----------
    texts : iterable of str
        Each ``key=value,key2=value2`` or one JSON object.
    option : str
        Name of the option, for the message.

    Raises
    ------
    InputError
        When a part has no ``=`` or the JSON is not an object.

    Examples
    --------
    >>> parse_pairs(["pretrained=models/a,dtype=float32", "max_length=128,sizes=[1,2]"], "--model_args")
    {'pretrained': 'models/a', 'dtype': 'float32', 'max_length': 128, 'sizes': [1, 2]}
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                pairs |= dict(json.loads(text))
            except (ValueError, TypeError, RecursionError) as error:
                raise InputError(
                    f"{option}: {text[:60]!r} is not a JSON object ({error}); write key=value or valid JSON"
                ) from error
            continue
        for part in split_outside(text):
            key, sign, value = part.partition("=")
            if not sign or not key.strip():
                raise InputError(f"{option}: {part[:60]!r} is not key=value; write for example pretrained=models/a")
            pairs[key] = literal(value)
    return pairs


def split_outside(text: str) -> list[str]:
    """Split at commas that stand outside brackets and quotes; empty parts are dropped.

    Examples
    --------
    >>> split_outside("a=[1,2],b='x,y',")
    ['a=[1,2]', "b='x,y'"]
    """
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if sign == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += sign
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth = max(0, depth + (sign in "[({") - (sign in "])}"))
    return [part for part in parts if part]


def literal(text: str) -> Any:
    """Return a value as lm-eval reads it: true/false, a number, a Python literal, otherwise text.

    Examples
    --------
    >>> [literal(text) for text in ("True", "8", "0.5", "['a']", "float32")]
    [True, 8, 0.5, ['a'], 'float32']
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    readers = (int, float, ast.literal_eval) if text.isnumeric() else (float, ast.literal_eval)
    for read in readers:
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return text
