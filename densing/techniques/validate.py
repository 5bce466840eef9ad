"""Published figures beside ours: every claim of every technique, checked, negative results included."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from densing.notes import Note
from densing.records import Record
from densing.techniques.protocol import Answer, Claim, Technique
from densing.techniques.registry import get_technique, techniques

if TYPE_CHECKING:
    import pandas as pd


class Finding(Record, frozen=True):
    """One published figure, and what became of it.

    Parameters
    ----------
    technique, claim, what, setup : str
        Who claims it, its id, and what it is about.
    published : float or str
        The figure, or a direction in words.
    unit, evidence, source : str
    ours : float, str or None
        None where the simulator has no answer, or was not asked.
    error : float, optional
        ours / published - 1; None for directions.
    tolerance : float, optional
        Largest size of the error that still counts as reproduced.
    verdict : {"reproduced", "not reproduced", "not answerable", "not run"}
    fitted : bool
        Whether the published figure itself is among the inputs: then nothing was predicted.
    inputs : str
        Which published figures went into ours.
    note : str
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
    verdict: str
    fitted: bool
    inputs: str
    note: str


class Validation(Record, frozen=True):
    """Findings in the order of the techniques, and remarks on checks that broke."""

    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()

    def table(self) -> pd.DataFrame:
        """Return the findings as a table."""
        return Record.frame(self.findings)


Progress = Callable[[str, int, int], None]


def validate(names: Sequence[str] = (), *, fast: bool = False, progress: Progress | None = None) -> Validation:
    """Check the claims of techniques.

    Parameters
    ----------
    names : sequence of str
        Techniques; all when empty.
    fast : bool
        Leave out claims that take more than ten seconds; they are reported as not run.
    progress : callable, optional
        Called with the claim's id, the number of claims done and the number in all.

    Returns
    -------
    Validation
        A claim whose check breaks is "not answerable", and has a note of severity ``error``.

    Raises
    ------
    densing.errors.UnknownNameError
        When a name is not a technique's.
    """
    chosen, notes = (tuple(map(get_technique, dict.fromkeys(names))), ()) if names else techniques()
    remarks = list(notes)
    claims = {technique.name: claims_of(technique, remarks) for technique in chosen}
    remarks += [_silent(name) for name in claims if names and not claims[name]]
    asked = [(name, claim) for name, own in claims.items() for claim in own]
    findings = []
    for number, (name, claim) in enumerate(asked):
        if progress is not None:
            progress(claim.id, number, len(asked))
        findings.append(_finding(name, claim, fast, remarks))
    return Validation(tuple(findings), tuple(remarks))


def _silent(name: str) -> Note:
    message = f"{name}: no published figure is listed for it, so there is nothing to check"
    return Note("no-claims", "info", message, {"technique": name})


def claims_of(technique: Technique, remarks: list[Note]) -> tuple[Claim, ...]:
    """Return the claims of a technique; none, and one more remark, where they break."""
    try:
        return tuple(technique.claims)
    except Exception as error:
        # May be code of another package: the other techniques' claims are still worth having.
        remarks.append(_broken(f"the claims of {technique.name}", technique.name, error))
        return ()


def _finding(name: str, claim: Claim, fast: bool, remarks: list[Note]) -> Finding:
    if fast and claim.slow:
        return _found(name, claim, Answer(None, "slow: left out by --fast"), "not run")
    try:
        answer = claim.check()
    except Exception as error:
        remarks.append(_broken(f"the check of {claim.id}", name, error))
        return _found(name, claim, Answer(None, f"the check broke: {error}"), "not answerable")
    return _found(name, claim, answer, verdict(claim, answer))


def _broken(what: str, name: str, error: Exception) -> Note:
    message = f"{what} broke ({type(error).__name__}: {error}); please report it to whoever wrote the technique"
    return Note("broken-claim", "error", message, {"technique": name})


def _found(name: str, claim: Claim, answer: Answer, word: str) -> Finding:
    return Finding(
        technique=name,
        claim=claim.id,
        what=claim.what,
        setup=claim.setup,
        published=claim.published,
        unit=claim.unit,
        evidence=claim.evidence,
        source=claim.source,
        # numpy's numbers are floats, and JSON knows plain ones only.
        ours=float(answer.value) if isinstance(answer.value, int | float) else answer.value,
        error=relative_error(claim.published, answer.value),
        tolerance=claim.tolerance,
        verdict=word,
        fitted=claim.fitted,
        inputs=claim.inputs,
        note=answer.note,
    )


def relative_error(published: float | str, ours: float | str | None) -> float | None:
    """Return ours / published - 1; None where either is no number, or nothing can be divided by.

    Examples
    --------
    >>> relative_error(2.0, 2.5), relative_error("A > B", "A > B")
    (0.25, None)
    """
    if isinstance(published, str) or isinstance(ours, str) or ours is None or published == 0:
        return None
    return float(ours / published - 1)


def verdict(claim: Claim, answer: Answer) -> str:
    """Return whether an answer reproduces a claim.

    A figure does within its tolerance, a direction when it comes out in the same words.
    """
    if answer.value is None or (isinstance(answer.value, float) and not math.isfinite(answer.value)):
        return "not answerable"
    if isinstance(claim.published, str) or isinstance(answer.value, str):
        held = claim.published == answer.value
    else:
        held = abs(answer.value - claim.published) <= (claim.tolerance or 0.0) * abs(claim.published) + 1e-12
    return "reproduced" if held else "not reproduced"
