"""Classification of spans: by category first, then by name, then by arguments.

The rules are data, in one table (``rules.csv``), each with its source; users can add their own. How a rule's
pattern is looked for in a name (:func:`any_case`) serves other modules that know spans by their names too.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from densing.core import InputError, Record
from densing.efficiency.timeline.timeline import Kind

KERNEL_DEFAULT = "kernel-default"
COLLECTIVE_WORD = "collective-word"
CATEGORY_UNKNOWN = "category-unknown"
COLLECTIVE_ARGUMENTS = "collective-arguments"
# The distinctive part of a kernel's name comes early; template arguments may run to a megabyte.
_HEAD = 4096
_OPERATORS = frozenset({"cpu_op", "operator"})
_RANGES = frozenset({"user_annotation"})
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
    """Return the rules of one scope, in the order they are tried.

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


_BY_ARGUMENTS = Rule(COLLECTIVE_ARGUMENTS, "kernel", "", Kind.COMM, "", "arguments of the event: Collective name")
_BY_DEFAULT = Rule(KERNEL_DEFAULT, "kernel", "", Kind.COMPUTE, "", "no rule matches the name; counted as compute")


class Match(Record, frozen=True):
    """The rule that decided, and its decision.

    Attributes
    ----------
    kind : Kind
    rule : str
        Name of the rule; ``kernel-default`` where no rule knows the name, ``collective-word`` where none does but it
        speaks of a collective (both count as compute and are listed).
    op : str
        Operation of a communication or a peer copy; empty if unknown.
    pattern : str
        Pattern that matched.
    source : str
        Where the rule is known from.
    """

    kind: Kind
    rule: str
    op: str = ""
    pattern: str = ""
    source: str = ""

    @property
    def known(self) -> bool:
        """Whether a rule matched the name; False for the defaults."""
        return self.rule not in (KERNEL_DEFAULT, COLLECTIVE_WORD, CATEGORY_UNKNOWN)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the kind by its lower-case name."""
        return {**super().to_dict(), "kind": self.kind.name.lower()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Match:
        """Rebuild a match written by :meth:`to_dict`."""
        return super().from_dict({**data, "kind": Kind[data["kind"].upper()]})


class Classifier:
    """Classifies spans by the table ``rules.csv`` and the user's own patterns.

    Order: the user's patterns; the category; communication by name; collective arguments; copies and fills by name;
    compute by name; else compute, as ``kernel-default``. A kernel that no communication rule knows, but whose name
    speaks of a collective (``collective-word``), is compute that is listed with those. A category no rule knows is
    UNKNOWN.

    Parameters
    ----------
    extra_comm : sequence of str
        Regular expressions, any case, searched in the first 4096 characters of names (template arguments may run to a
        megabyte); what they match is communication.

    Raises
    ------
    InputError
        For a pattern that is not a regular expression, or matches every name.

    Notes
    -----
    Source: the classes by which the reference numbers of this project were made (categories as in kineto's
    ``output_json.cpp``), plus communication libraries named in ``rules.csv``, row by row.

    Examples
    --------
    >>> classify = Classifier()
    >>> classify.kind("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL").name
    'COMM'
    >>> classify.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    'all_reduce'
    >>> classify.explain("frobnicate").rule, classify.explain("frobnicate").kind.name
    ('kernel-default', 'COMPUTE')
    """

    def __init__(self, extra_comm: Sequence[str] = ()) -> None:
        self.extra_comm = tuple(extra_comm)
        patterns = []
        for text in self.extra_comm:
            try:
                pattern = re.compile(text, re.IGNORECASE)
            except (re.error, OverflowError, RecursionError) as error:
                raise InputError(
                    f"--comm-pattern {text!r}: not a regular expression ({error}); correct or quote it"
                ) from error
            if pattern.search(""):
                raise InputError(f"--comm-pattern {text!r}: matches every name; give part of a name")
            patterns.append(pattern)
        self._extra = tuple(patterns)

    def kind(self, category: str, name: str, collective: bool = False) -> Kind:
        """Return what a device span is; ``collective`` says that its arguments describe a collective.

        Examples
        --------
        >>> Classifier().kind("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)").name
        'MEMCPY'
        """
        if self._users(name):
            return Kind.COMM
        group = _category(category)
        if group is None:
            return Kind.UNKNOWN
        return group.kind if group.kind is not None else _kernel_kind(name.lower(), collective)

    def knows(self, name: str) -> bool:
        """Return whether a rule matches the name of a kernel; faster than :attr:`Match.known` of :meth:`match`.

        Examples
        --------
        >>> Classifier().knows("ampere_sgemm_128x64_tn"), Classifier().knows("frobnicate")
        (True, False)
        """
        text = name.lower()
        if _kernel_kind(text, collective=False) != Kind.COMPUTE or self._users(name):
            return True
        if not _matches("kernel", Kind.COMPUTE, text[:_HEAD]):
            return False
        speaks_of_a_collective = any(
            rule.search(text[:_HEAD]) for rule in rules("kernel") if rule.rule == COLLECTIVE_WORD
        )
        return not speaks_of_a_collective or self.match("kernel", name).known

    def op(self, name: str) -> str:
        """Return the operation in a communication's name: ``all_reduce``, ``send_recv``, ...; empty if there is none.

        Peer copies of the copy engine give ``p2p_copy``.

        Examples
        --------
        >>> Classifier().op("nccl:_reduce_scatter_base"), Classifier().op("ncclDevKernel_Generic(4096ul)")
        ('reduce_scatter', '')
        """
        text = name[:_HEAD].lower()
        fixed = (rule.op for rule in rules("kernel") if rule.op and rule.search(text))
        by_word = (rule.op for rule in rules("op") if rule.search(text))
        return next(fixed, "") or next(by_word, "")

    def host_kind(self, category: str, name: str, on_comm_thread: bool) -> Kind | None:
        """Return what a host event is in a run without device; None if it is not work.

        Communication: ranges ``gloo:*`` (and those of other processor back-ends). Compute: operators on threads
        other than the back-end's. Call: operators ``c10d::*`` there; nothing counts as compute during these.

        Examples
        --------
        >>> classify = Classifier()
        >>> classify.host_kind("user_annotation", "gloo:all_reduce", True).name
        'COMM'
        >>> classify.host_kind("cpu_op", "aten::copy_", on_comm_thread=True) is None
        True
        """
        category, text = category.lower(), name.lower()
        if category not in _OPERATORS | _RANGES:
            return None
        if self._users(name) or _matches("host", Kind.COMM, text):
            return Kind.COMM
        if category in _RANGES or on_comm_thread:
            return None
        return Kind.CALL if _matches("host", Kind.CALL, text) else Kind.COMPUTE

    def match(self, category: str, name: str, collective: bool = False) -> Match:
        """Return the rule that decides, with its source; slower than :meth:`kind`, and agrees with it."""
        user = self._users(name)
        if user:
            number = 1 + self.extra_comm.index(user)
            return Match(Kind.COMM, f"user-{number}", self.op(name), user, "--comm-pattern")
        group = _category(category)
        if group is None:
            return Match(Kind.UNKNOWN, CATEGORY_UNKNOWN)
        if group.kind is not None:
            return self._match_of(group, name)
        text = name.lower()
        communication = [rule for rule in rules("kernel") if rule.kind == Kind.COMM]
        others = [rule for rule in rules("kernel") if rule.kind != Kind.COMM]
        for rule in (*communication, *([_BY_ARGUMENTS] if collective else []), *others):
            if rule is _BY_ARGUMENTS or rule.search(text[:_HEAD] if rule.kind == Kind.COMPUTE else text):
                return self._match_of(rule, name)
        return self._match_of(_BY_DEFAULT, name)

    def explain(self, name: str, category: str | None = None, collective: bool = False) -> Match:
        """Return which rule decides on a name, as :meth:`match` does.

        Without a category the name may be a kernel's or a host event's: where neither the user's patterns nor the
        kernel rules call it communication, a host rule that matches answers, else the kernel rules.

        Examples
        --------
        >>> Classifier().explain("gloo:all_reduce").rule, Classifier().explain("gloo:all_reduce", "kernel").rule
        ('host-communication', 'collective-word')
        """
        decided = self.match("kernel" if category is None else category, name, collective)
        if category is not None or decided.kind == Kind.COMM:
            return decided
        text = name.lower()
        rule = next((rule for rule in rules("host") if rule.search(text)), None)
        return decided if rule is None else self._match_of(rule, name)

    def _match_of(self, rule: Rule, name: str) -> Match:
        kind = rule.kind if rule.kind is not None else Kind.UNKNOWN
        op = self.op(name) if rule.kind in (Kind.COMM, Kind.MEMCPY) else ""
        return Match(kind, rule.rule, op, rule.pattern, rule.source)

    def _users(self, name: str) -> str:
        head = name[:_HEAD]
        return next((pattern.pattern for pattern in self._extra if pattern.search(head)), "")


def _category(category: str) -> Rule | None:
    text = category.lower()
    return next((rule for rule in rules("category") if rule.search(text)), None)


def _matches(applies_to: Where, kind: Kind, text: str) -> bool:
    return any(search(text) for search in searches(applies_to, kind))


def _kernel_kind(text: str, collective: bool) -> Kind:
    if collective or _matches("kernel", Kind.COMM, text):
        return Kind.COMM
    if _matches("kernel", Kind.MEMSET, text):
        return Kind.MEMSET
    return Kind.MEMCPY if _matches("kernel", Kind.MEMCPY, text) else Kind.COMPUTE


# Searches in lower-case names: plain texts are looked for as such, anything else is a regular expression. To compile
# one takes longer than to try it on every name of a trace, and most patterns are words.
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
    if not is_plain(pattern):
        return re.compile(pattern).search
    parts = _parts(pattern)
    exact = frozenset(text for first, last, text in parts if first and last)
    start = tuple(text for first, last, text in parts if first and not last)
    end = tuple(text for first, last, text in parts if last and not first)
    inside = tuple(text for first, last, text in parts if not first and not last)

    def search(name: str) -> bool:
        if name.startswith(start) or name in exact or name.endswith(end):
            return True
        for text in inside:  # noqa: SIM110 -- any() takes twice as long
            if text in name:
                return True
        return False

    return search


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
