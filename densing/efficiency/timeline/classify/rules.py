"""The table of rules: what a name or a category stands for, and where that is known from."""

from __future__ import annotations

import csv
import io
from functools import cache
from pathlib import Path
from typing import Literal

from densing.core import Record
from densing.efficiency.timeline import Kind, Search, is_plain, search_of

Where = Literal["category", "kernel", "host", "op"]


class Rule(Record, frozen=True):
    """One row of ``rules.csv``.

    Parameters
    ----------
    rule : str
        Short name.
    applies_to : {"category", "kernel", "host", "op"}
        What the pattern is searched in: the event's category; the name of a device span; the name of a host event of
        a run without device; the name of a communication or copy, for its operation.
    pattern : str
        Regular expression over lower-case text.
    kind : Kind or None
        None where another rule decides.
    op : str
        Operation, where the rule fixes it.
    source : str
        Library or file the name comes from.
    """

    rule: str
    applies_to: Where
    pattern: str
    kind: Kind | None
    op: str
    source: str

    def search(self, text: str) -> bool:
        """Return whether the pattern occurs in lower-case text."""
        return bool(search_of(self.pattern)(text))


@cache
def rules(applies_to: Where) -> tuple[Rule, ...]:
    """Return the rules of one scope in the order in which they are tried.

    Examples
    --------
    >>> rules("kernel")[0].rule, rules("kernel")[0].kind.name
    ('nccl', 'COMM')
    """
    return tuple(rule for rule in _table() if rule.applies_to == applies_to)


@cache
def searches(applies_to: Where, kind: Kind) -> tuple[Search, ...]:
    """Return the searches of the rules of one kind: one for all plain texts, one for each regular expression."""
    patterns = [rule.pattern for rule in rules(applies_to) if rule.kind == kind]
    plain = [pattern for pattern in patterns if is_plain(pattern)]
    joined = (search_of("|".join(plain)),) if plain else ()
    return (*joined, *(search_of(pattern) for pattern in patterns if not is_plain(pattern)))


@cache
def _table() -> tuple[Rule, ...]:
    text = Path(__file__).with_name("rules.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(io.StringIO(text))
    return tuple(Rule(**{**row, "kind": Kind[row["kind"]] if row["kind"] else None}) for row in rows)  # type: ignore[arg-type]
