"""Validation of every claim of every technique against its published figure, negative results included.

Only a prediction can be reproduced. Other agreement (with a fitted figure, arithmetic, a count, our own earlier
measurement, a row beside fitted ones) is counted by its own grade, and stands apart where a null model agrees too.
Every miss names the assumption that would turn it, or those that were varied in vain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

import msgspec

from densing.core import Card, Field, Listing, Note, Readable, Record, cached, column, formatting, numeric
from densing.efficiency.systems import experiments
from densing.efficiency.systems.claims import GRADES, MUTATIONS, PHYSICS, Answer, Claim, Grade
from densing.efficiency.systems.registry import Technique, get_technique, techniques

if TYPE_CHECKING:
    import pandas as pd

SIMULATED: tuple[Grade, ...] = ("predicted", "calibrated on other rows")
"""Grades whose answers must come from the simulator, so their checks are repeated under every mutation."""

SHARED = "agrees, as does the null"
VERDICTS = ("reproduced", "not reproduced", "agrees", SHARED, "differs", "not answerable")
NEARER = 0.001
"""Margin by which an error must be smaller than the null model's to count as closer."""
HELD, MISSED = ("reproduced", "agrees", SHARED), ("not reproduced", "differs")


class Finding(Record, frozen=True):
    """One published figure and our answer.

    Parameters
    ----------
    technique, claim, what, setup : str
        The claim's technique, id, subject and setup.
    published : float or str
        The figure, or a direction in words.
    unit, evidence, source : str
    ours : float, str or None
        None where the simulator has no answer, or was not asked.
    error : float, optional
        ours / published - 1; None for directions.
    tolerance : float, optional
        Largest size of the error that still counts as reproduced.
    grade : str
        What agreement is, or would be, worth, see :class:`densing.efficiency.systems.Claim`.
    verdict : str
        One of :data:`VERDICTS`: the first two of predictions, the next three of all other grades.
    inputs : str
        Published figures that ours was fitted to.
    note : str
    null : float, str or None
        Answer of a model without a simulator from the same inputs.
    null_error : float, optional
        null / published - 1.
    null_model : str
        Description of that model.
    mutations : mapping of str to float, str or None
        Our answer by broken law; empty where the check was not run again.
    turned_by : tuple of str
        Mutations that turn the verdict, or, where the claim fails anyway, move the answer by more than the tolerance.
    assumptions : mapping of str to float, str or None
        Our answer under other assumptions, one changed at a time.
    decided_by : tuple of str
        Assumptions that turn the verdict: an answer over a range does where a part of the range would.
    series, way : str
        The table that this row belongs to and its column there, see :class:`densing.efficiency.systems.Claim`.
    """

    technique: str
    claim: str
    what: str
    setup: str
    published: float | str
    unit: str
    evidence: str
    source: str
    ours: float | str | None
    error: float | None
    tolerance: float | None
    grade: str
    verdict: str
    inputs: str
    note: str
    null: float | str | None = None
    null_error: float | None = None
    null_model: str = ""
    mutations: Mapping[str, float | str | None] = msgspec.field(default_factory=dict)
    turned_by: tuple[str, ...] = ()
    assumptions: Mapping[str, float | str | None] = msgspec.field(default_factory=dict)
    decided_by: tuple[str, ...] = ()
    series: str = ""
    way: str = ""


class Tally(Record, frozen=True):
    """Counts of findings; only predictions can be reproduced.

    Parameters
    ----------
    predictions, reproduced : int
        Those that have an answer, and those of them whose answer is within the tolerance.
    with_null, closer : int
        Figures that have a null model, and those that come closer than it, by over 0.1 percentage points.
    agreeing, shared : int
        Calibrated figures that agree, and those of them whose null model agrees too.
    blind : tuple of str
        Claims that hold under every broken law, too.
    untested : tuple of str
        Laws that no claim which holds depends on, see :func:`untested`.
    not_first_hand : int
        Published figures that are quoted second-hand or derived.
    """

    predictions: int
    reproduced: int
    with_null: int
    closer: int
    agreeing: int
    shared: int
    blind: tuple[str, ...]
    untested: tuple[str, ...]
    not_first_hand: int


LABELS = {
    "second-hand": "second-hand",
    "recalled": "recalled, not the paper's",
    "derived": "derived",
    "measured": "measured by us",
}
"""Said beside a published figure wherever it is printed; first-hand ones need no label."""


def published_words(row: Mapping[str, Any]) -> str:
    """Return a published figure with the label its evidence asks for.

    Examples
    --------
    >>> published_words({"published": 1.3, "unit": "×", "evidence": "second-hand"})
    '1.30 × (second-hand)'
    """
    label = LABELS.get(str(row.get("evidence")), "")
    prose = formatting.figure(row.get("published"), row.get("unit"))
    return f"{prose} ({label})" if label else prose


def null_words(row: Mapping[str, Any]) -> str:
    """Return the error of a row's null model, or its words, with what it is.

    Examples
    --------
    >>> null_words({"null": 1.0, "null_error": -0.032, "null_model": "all hidden"}), null_words({})
    ('−3.2 % (all hidden)', '–')
    """
    if row.get("null") is None:
        return formatting.MISSING
    value = row["null"] if isinstance(row["null"], str) else formatting.deviation(row.get("null_error"))
    return formatting.clean(f"{value} ({row['null_model']})", 300)


def why(row: Mapping[str, Any]) -> str:
    """Return which of a row's assumptions turn its verdict, and what ours would be under each that was varied.

    Returns
    -------
    str
        Empty where the row holds and nothing was varied, or was not looked at.

    Examples
    --------
    >>> tried = {"half the link": 18.56, "int8 on the wire": 5.6}
    >>> why({"verdict": "reproduced", "assumptions": tried, "decided_by": ["int8 on the wire"]})
    'turns with int8 on the wire (5.6); holds with half the link (18.56)'
    >>> why({"verdict": "differs", "assumptions": {"half the link": 18.56}, "decided_by": []})
    'none of those varied: half the link (18.56)'
    >>> why({"verdict": "not reproduced"})
    'nothing was varied'
    """
    tried: Mapping[str, float | str | None] = row.get("assumptions") or {}
    if row["verdict"] not in (*HELD, *MISSED) or (row["verdict"] in HELD and not tried):
        return ""
    if not tried:
        return "nothing was varied"

    def listed(names: Sequence[str]) -> str:
        values = [tried[name] for name in names]
        answers = [
            "no answer" if value is None else value if isinstance(value, str) else f"{value:.4g}" for value in values
        ]
        return ", ".join(f"{name} ({answer})" for name, answer in zip(names, answers, strict=True))

    turning = [name for name in tried if name in row["decided_by"]]
    others = [name for name in tried if name not in turning]
    if not turning:
        verb = "none of those varied:" if row["verdict"] in MISSED else "holds with"
        return f"{verb} {listed(others)}"
    rest = "not with" if row["verdict"] in MISSED else "holds with"
    return f"turns with {listed(turning)}" + (f"; {rest} {listed(others)}" if others else "")


FINDINGS = (
    Field("Claim", column("claim")),
    Field("What", lambda row: ": ".join(formatting.clean(row[key], 200) for key in ("what", "setup")
                                        if row.get(key))),
    Field("Published", published_words),
    Field("Ours", lambda row: formatting.figure(row.get("ours"), row.get("unit"))),
    numeric("Error", "error", formatting.deviation, hint="Ours over published, less 1"),
    Field("Grade", column("grade")),
    Field("Verdict", column("verdict")),
    Field("Null", null_words, hint="Error of a model without a simulator, from the same inputs"),
    Field("Notices", lambda row: ", ".join(map(str, row.get("turned_by") or ())) or formatting.MISSING,
          hint="Broken laws of the simulator that turn the row"),
    Field("Why", lambda row: formatting.clean(why(row), 400) or formatting.MISSING,
          hint="Assumptions of ours, varied one at a time, that turn the verdict; of a miss also those that do not"),
    Field("Technique", column("technique"), minor=True),
    Field("Evidence", column("evidence"), minor=True),
    Field("Inputs", lambda row: formatting.clean(row.get("inputs") or "", 400), hint="Published figures used in "
                                                                                     "ours",
          minor=True),
    Field("Note", lambda row: formatting.clean(row.get("note") or "", 400)),
    Field("Source", lambda row: formatting.clean(row["source"], 300), minor=True),
)  # fmt: skip
"""How a finding is shown."""


class Validation(Readable, Record, frozen=True):
    """Findings in the order of the techniques, and remarks on checks that broke."""

    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()

    def listing(self) -> Listing:
        """Return published figures beside ours, with what agreement is worth; series have tables of their own."""
        rows = [finding for finding in self.findings if not finding.series]
        return Listing("Published figures and what the simulator gives for each.", rows, FINDINGS)

    def series(self) -> dict[str, Listing]:
        """Return the table of every series by its name, see :func:`series_listings`."""
        return series_listings([finding.to_dict() for finding in self.findings])

    def card(self) -> Card:
        """Return what is shown: how many published figures stand where, then each of them."""
        counts = {verdict: sum(finding.verdict == verdict for finding in self.findings) for verdict in VERDICTS}
        facts = {verdict: str(count) for verdict, count in counts.items() if count}
        every = Listing(self.listing().title, self.findings, FINDINGS)
        return Card(f"{len(self.findings)} published figures beside the simulator", facts, every, self.notes)

    def table(self) -> pd.DataFrame:
        """Return the findings as a table."""
        return Record.frame(self.findings)

    @property
    def tally(self) -> Tally:
        """What the findings amount to."""
        predictions = [row for row in self.findings if row.grade == "predicted" and row.verdict in (*HELD, *MISSED)]
        calibrated = [row for row in self.findings if row.grade == "calibrated on other rows"]
        nulls = [row for row in self.findings if row.null_error is not None and row.error is not None]
        return Tally(
            predictions=len(predictions),
            reproduced=sum(row.verdict == "reproduced" for row in predictions),
            with_null=len(nulls),
            closer=sum(abs(row.error or 0.0) < abs(row.null_error or 0.0) - NEARER for row in nulls),
            agreeing=sum(row.verdict in HELD for row in calibrated),
            shared=sum(row.verdict == SHARED for row in calibrated),
            blind=tuple(
                row.claim for row in self.findings if row.mutations and row.verdict in HELD and not row.turned_by
            ),
            untested=tuple(untested([row.to_dict() for row in self.findings])),
            not_first_hand=sum(row.evidence != "first-hand" for row in self.findings),
        )


def counts_of(rows: Sequence[Mapping[str, object]]) -> dict[str, Counter[str]]:
    """Return how many rows of each grade have each verdict, grades and verdicts in their order.

    Examples
    --------
    >>> counts_of([{"grade": "counted", "verdict": "agrees"}, {"grade": "predicted", "verdict": "reproduced"}])
    {'predicted': Counter({'reproduced': 1}), 'counted': Counter({'agrees': 1})}
    """
    counts = {grade: Counter(str(row["verdict"]) for row in rows if row["grade"] == grade) for grade in GRADES}
    return {grade: counts[grade] for grade in GRADES if counts[grade]}


def grades_listing(rows: Sequence[Mapping[str, Any]]) -> Listing:
    """Return how many rows of each grade have each verdict."""
    counts = counts_of(rows)
    verdicts = [verdict for verdict in VERDICTS if any(count[verdict] for count in counts.values())]
    fields = (
        Field("Grade", column("grade")),
        numeric("Rows", "rows", formatting.count),
        numeric("Figures", "figures", formatting.count, hint="Different published figures among the rows"),
        *(numeric(verdict.capitalize(), verdict, formatting.count) for verdict in verdicts),
    )
    # Rows of a series differ in how ours is made, not in what is published.
    keys = [
        (row.get("source"), row.get("setup"), row.get("published"), row.get("series") or row.get("what"))
        for row in rows
    ]
    figures = {
        grade: len({key for row, key in zip(rows, keys, strict=True) if row["grade"] == grade}) for grade in counts
    }
    sums = [
        {"grade": grade, "rows": count.total(), "figures": figures[grade], **count} for grade, count in counts.items()
    ]
    return Listing("Rows by what agreement is worth (see the definitions).", sums, fields)


def series_listings(rows: Sequence[Mapping[str, Any]]) -> dict[str, Listing]:
    """Return one table per series: a row per published figure, a column per way that ours was made.

    Parameters
    ----------
    rows : sequence of mapping
        Findings; those without a series are left out.

    Returns
    -------
    dict of str to Listing
        By the name of the series. A cell has the error and the verdict; null models stand in columns of their own.

    Examples
    --------
    >>> row = {"series": "LAD-1", "way": "b: equal times", "setup": "batch 1", "published": 8.0, "unit": "",
    ...        "evidence": "first-hand", "verdict": "differs", "error": 0.25, "null_error": 0.1, "null_model": "hidden"}
    >>> print("\\n".join(series_listings([row])["LAD-1"].lines()))
    Setup    Published  b: equal times     Null: hidden
    batch 1  8.00       +25.0 % (differs)  +10.0 %
    """
    listings = {}
    for name in dict.fromkeys(str(row["series"]) for row in rows if row.get("series")):
        own = [row for row in rows if row.get("series") == name]
        figures: dict[tuple[Any, Any], dict[str, Any]] = {}
        ways: dict[str, None] = {}
        nulls: dict[str, None] = {}
        for row in own:
            error = formatting.deviation(row["error"])
            figure = figures.setdefault((row["setup"], row["published"]), dict(row))
            figure[f"way {row['way']}"] = f"{error} ({row['verdict']})"
            ways[str(row["way"])] = None
            if row.get("null_error") is not None:
                figure[f"null {row['null_model']}"] = formatting.deviation(row["null_error"])
                nulls[str(row["null_model"])] = None
        cells = [*((way, f"way {way}") for way in ways), *((f"Null: {null}", f"null {null}") for null in nulls)]
        listings[name] = Listing(
            f"{name}: {len(own)} rows recompute {formatting.plural(len(figures), 'published figure')}.",
            list(figures.values()),
            (
                Field("Setup", column("setup")),
                Field("Published", published_words),
                *(Field(title, column(key)) for title, key in cells),
            ),
        )
    return listings


def untested(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the laws that no row which holds would miss: agreement says nothing about them.

    Examples
    --------
    >>> untested([{"verdict": "agrees", "mutations": {"a": 1.0, "b": 9.0}, "turned_by": ["b"]}])
    ['a']
    """
    broken = dict.fromkeys(key for row in rows for key in row.get("mutations") or ())
    missed = {key for row in rows if row["verdict"] in HELD for key in row.get("turned_by") or ()}
    return [key for key in broken if key not in missed]


Progress = Callable[[str, int, int], None]


class _Checked(Record, frozen=True):
    """Findings of one technique, and remarks on checks that broke."""

    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]


def validate(
    names: Sequence[str] = (), *, keep: bool = False, again: bool = False, progress: Progress | None = None
) -> Validation:
    """Check the claims of techniques.

    What the simulator answers is asked again under every mutation of its laws and every other assumption that a claim
    names. A claim graded ``predicted`` that notices no mutation is not a prediction: it comes out as ``algebraic``.

    Parameters
    ----------
    names : sequence of str
        Techniques; all when empty.
    keep : bool
        Whether a technique's findings are cached, and read from the cache as long as the code and tables of this wing
        and the installed packages are the same. Those of other packages' techniques, and those with a check that broke,
        never are.
    again : bool
        Whether experiments are done again instead of reading their shipped outcomes; nothing is then cached.
    progress : callable, optional
        Called with the claim's id, the number of claims done and the number in all.

    Returns
    -------
    Validation
        A claim whose check breaks is "not answerable", and has a note of severity ``error``.

    Raises
    ------
    densing.core.errors.UnknownNameError
        When a name is not a technique's.
    """
    chosen, notes = (tuple(map(get_technique, dict.fromkeys(names))), ()) if names else techniques()
    remarks = list(notes)
    claims = {technique.name: claims_of(technique, remarks) for technique in chosen}
    for name in claims:
        if names and not claims[name]:
            message = f"{name}: lists no published figures, so there is nothing to check"
            remarks.append(Note("no-claims", "info", message, {"technique": name}))
    done, total = 0, sum(map(len, claims.values()))

    def check(name: str) -> _Checked:
        findings, broken = [], list[Note]()
        for number, claim in enumerate(claims[name], done):
            if progress is not None:
                progress(claim.id, number, total)
            findings.append(_finding(name, claim, broken))
        return _Checked(tuple(findings), tuple(broken))

    packages = sorted(f"{each.name} {each.version}" for each in distributions()) if keep else []
    findings: list[Finding] = []
    with experiments.rerun() if again else nullcontext():
        for technique in chosen:
            name, own = technique.name, type(technique).__module__.split(".")[0] == __name__.split(".")[0]
            if keep and own and claims[name] and not again:
                checked = cached(
                    partial(check, name), _Checked, f"claims-{name}", name, packages, by=validate, most=2,
                    whole=lambda made: not any(note.severity == "error" for note in made.notes),
                )  # fmt: skip
            else:
                checked = check(name)
            findings += checked.findings
            remarks += checked.notes
            done += len(claims[name])
    return Validation(tuple(findings), tuple(remarks))


def claims_of(technique: Technique, remarks: list[Note]) -> tuple[Claim, ...]:
    """Return the claims of a technique; none, and one more remark, where they break."""
    try:
        return tuple(technique.claims)
    except Exception as error:
        # May be code of another package: the other techniques' claims are still worth having.
        remarks.append(_broken(f"the claims of {technique.name}", technique.name, error))
        return ()


def _broken(subject: str, name: str, error: Exception) -> Note:
    message = f"{subject} broke ({type(error).__name__}: {error}); please report it to whoever wrote the technique"
    return Note("broken-claim", "error", message, {"technique": name})


def _finding(name: str, claim: Claim, remarks: list[Note]) -> Finding:
    try:
        answer = claim.check(PHYSICS)
    except Exception as error:
        remarks.append(_broken(f"the check of {claim.id}", name, error))
        return _record(name, claim, Answer(None, f"the check broke: {error}"), "not answerable")
    outcome = verdict(claim, answer)
    if outcome == "not answerable":
        return _record(name, claim, answer, outcome)
    null = _other(lambda: claim.null() if claim.null else Answer(None), f"the null model of {claim.id}", name, remarks)
    mutated: dict[str, Answer] = {}
    if claim.grade in SIMULATED:
        # The whole check runs again, calibrations too: only what the simulator contributes can come out otherwise.
        mutated = {key: _mutated(claim, key) for key in MUTATIONS}
    assumed = {
        key: _other(check, f"the check of {claim.id} with {key}", name, remarks)
        for key, check in claim.assumptions.items()
    }
    noticed = tuple(key for key, other in mutated.items() if notices(claim, answer, other))
    if claim.grade == "predicted" and not noticed:
        message = (
            f"{claim.id} is graded predicted but does not change under {', '.join(MUTATIONS)}: it "
            "is counted as algebraic; pass the check's physics to what it simulates, or correct "
            "the grade"
        )
        remarks.append(Note("insensitive-claim", "warning", message, {"technique": name, "claim": claim.id}))
        claim = replace(claim, grade="algebraic")
        outcome = verdict(claim, answer)
    turning = {
        key: other for key, other in assumed.items() if other.value is not None and verdict(claim, other) != outcome
    }
    if outcome == "agrees" and verdict(claim, null) == "agrees":
        outcome = SHARED
    return msgspec.structs.replace(
        _record(name, claim, answer, outcome),
        null=_plain(null.value),
        null_error=relative_error(claim.published, null.value),
        null_model=null.note,
        mutations={key: _plain(other.value) for key, other in mutated.items()},
        turned_by=noticed,
        assumptions={key: _plain(other.value) for key, other in assumed.items()},
        decided_by=tuple(turning),
    )


def _mutated(claim: Claim, mutation: str) -> Answer:
    """Ask again under broken laws; a calibration may then have no solution, which is not the check's fault."""
    try:
        return claim.check(MUTATIONS[mutation])
    except Exception as error:
        return Answer(None, f"no answer under {mutation}: {error}")


def _other(check: Callable[[], Answer], subject: str, name: str, remarks: list[Note]) -> Answer:
    try:
        return check()
    except Exception as error:
        remarks.append(_broken(subject, name, error))
        return Answer(None)


def notices(claim: Claim, ours: Answer, mutated: Answer) -> bool:
    """Return whether a claim tells broken laws from the simulator's own.

    Its verdict turns; or, where it has missed anyway, its answer moves by more than the published figure's tolerance.
    No answer at all notices nothing: a check may fail for many reasons.
    """
    if verdict(claim, mutated) == "not answerable":
        return False
    if verdict(claim, mutated) != verdict(claim, ours):
        return True
    if verdict(claim, ours) in HELD:
        return False
    if isinstance(claim.published, str) or isinstance(ours.value, str) or isinstance(mutated.value, str):
        return ours.value != mutated.value
    moved = abs((mutated.value or 0.0) - (ours.value or 0.0))
    return moved > (claim.tolerance or 0.0) * abs(claim.published)


def _record(name: str, claim: Claim, answer: Answer, outcome: str) -> Finding:
    return Finding(
        technique=name,
        claim=claim.id,
        what=claim.what,
        setup=claim.setup,
        published=claim.published,
        unit=claim.unit,
        evidence=claim.evidence,
        source=claim.source,
        ours=_plain(answer.value),
        error=relative_error(claim.published, answer.value),
        tolerance=claim.tolerance,
        grade=claim.grade,
        verdict=outcome,
        inputs=claim.inputs,
        note=answer.note,
        series=claim.series,
        way=claim.way,
    )


def _plain(value: float | str | None) -> float | str | None:
    # numpy's numbers are floats, and JSON knows plain ones only.
    return float(value) if isinstance(value, int | float) else value


def relative_error(published: float | str, ours: float | str | None) -> float | None:
    """Return ours / published - 1; None where either is not a number, or nothing can be divided by.

    Examples
    --------
    >>> relative_error(2.0, 2.5), relative_error("A > B", "A > B")
    (0.25, None)
    """
    if isinstance(published, str) or isinstance(ours, str) or ours is None or published == 0:
        return None
    return float(ours / published - 1)


def verdict(claim: Claim, answer: Answer) -> str:
    """Return what an answer makes of a claim.

    A figure holds within its tolerance, a direction when it comes out in the same words. A prediction that holds is
    ``reproduced``, anything else that does only ``agrees``. An answer that depends on what is not published holds where
    its whole range does, and is ``not answerable`` where only a part of it does; so is one that holds for some readings
    of the source alone.
    """
    if answer.value is None or answer.readings or (isinstance(answer.value, float) and not math.isfinite(answer.value)):
        return "not answerable"
    if isinstance(claim.published, str):
        held = claim.published == answer.value
    elif answer.ends is None and isinstance(answer.value, str):
        held = False
    else:
        low, high = answer.ends or (float(answer.value), float(answer.value))
        allowed = (claim.tolerance or 0.0) * abs(claim.published) + 1e-12
        inside = [abs(end - claim.published) <= allowed for end in (low, high)]
        held = all(inside)
        if not held and (any(inside) or low < claim.published < high):
            return "not answerable"
    number = 0 if claim.grade == "predicted" else 1
    return (HELD if held else MISSED)[number]
