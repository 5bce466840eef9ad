"""Searches in lower-case names: plain texts are looked for as such, anything else is a regular expression.

To compile a regular expression takes longer than to try it on every name of a trace, and most patterns are words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

Search = Callable[[str], object]
_SPECIAL = frozenset("\\.*+?{}[]()^$")


def is_plain(pattern: str) -> bool:
    """Return whether a pattern is made of plain texts: ``a|^b|c$|^d$``."""
    return all(text and not _SPECIAL.intersection(text) for _, _, text in _parts(pattern))


@cache
def search_of(pattern: str) -> Search:
    """Return a search for a pattern over lower-case text: true where the pattern occurs.

    Plain texts, each perhaps tied to the start (``^a``), to the end (``a$``) or to both, need no regular expression;
    unlike one, ``a$`` does not match before a line feed at the end.

    Examples
    --------
    >>> [bool(search_of("nccl|^hccl")(text)) for text in ("my nccl", "hccl::send", "my hccl")]
    [True, True, False]
    """
    return _plain_search(pattern) if is_plain(pattern) else re.compile(pattern).search


def any_case(pattern: str) -> Search:
    """Return a search for a pattern in names of any case; compiled, if at all, on first use.

    Examples
    --------
    >>> any_case("^synchro")("SynchronizeEvent")
    True
    """

    def search(name: str) -> object:
        return search_of(pattern)(name.lower())

    return search


def _parts(pattern: str) -> list[tuple[bool, bool, str]]:
    """Alternatives: whether tied to the start and to the end, and what is left."""
    return [
        (part.startswith("^"), part.endswith("$"), part.removeprefix("^").removesuffix("$"))
        for part in pattern.split("|")
    ]


def _plain_search(pattern: str) -> Search:
    parts = _parts(pattern)
    whole = frozenset(text for first, last, text in parts if first and last)
    start = tuple(text for first, last, text in parts if first and not last)
    end = tuple(text for first, last, text in parts if last and not first)
    inside = tuple(text for first, last, text in parts if not first and not last)

    def search(name: str) -> bool:
        if name.startswith(start) or name in whole or name.endswith(end):
            return True
        for text in inside:  # noqa: SIM110 -- any() takes twice as long
            if text in name:
                return True
        return False

    return search
