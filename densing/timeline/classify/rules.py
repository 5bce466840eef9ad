"""The table of rules: what a name or a category stands for, and where that is known from."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from densing.timeline.spans import Kind

Where = Literal["category", "kernel", "host", "op"]


@dataclass(frozen=True)
class Rule:
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
        return compiled(self.pattern).search(text) is not None


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
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern once."""
    return re.compile(pattern)


@cache
def searches(applies_to: Where, kind: Kind) -> tuple[Callable[[str], object], ...]:
    """Return the searches of the rules of one kind; literal patterns one by one are faster than joined by ``|``."""
    return tuple(compiled(rule.pattern).search for rule in rules(applies_to) if rule.kind == kind)


@cache
def _table() -> tuple[Rule, ...]:
    text = Path(__file__).with_name("rules.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(io.StringIO(text))
    return tuple(Rule(**{**row, "kind": Kind[row["kind"]] if row["kind"] else None}) for row in rows)  # type: ignore[arg-type]
