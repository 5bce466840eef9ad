"""What ``densing techniques validate`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from densing.cli.output import emit_plain, finish, say, show_notes, timed_bar
from densing.cli.table import columns
from densing.core import words

if TYPE_CHECKING:
    from densing.efficiency.techniques import Finding, Validation


def answer(names: tuple[str, ...], *, fast: bool, html: Path | None, json: bool) -> None:
    """Check the claims and print, or write, what became of each."""
    from densing.efficiency.techniques import validate

    with timed_bar(quiet=json, label="claims") as show:
        found = validate(names, fast=fast, progress=lambda claim, done, total: show(claim, float(done), float(total)))
    if html is not None:
        from densing.report import build_techniques

        build_techniques(html, claims=found.findings, notes=found.notes)
        say(f"wrote {html}")
    if json:
        emit_plain([finding.to_dict() for finding in found.findings])
    else:
        typer.echo("\n".join(lines(found)))
    show_notes(found.notes)
    finish(found.notes)


def lines(found: Validation) -> list[str]:
    """Return the table and its sums, line by line."""
    from densing.efficiency.techniques import VERDICTS, counts_of

    header = ("claim", "technique", "what", "published", "known", "ours", "error", "null", "allowed", "grade",
              "verdict", "noticed")  # fmt: skip
    rows = [_row(finding) for finding in found.findings]
    counts = counts_of([finding.to_dict() for finding in found.findings])
    seen = [word for word in VERDICTS if any(count[word] for count in counts.values())]
    sums = [
        (grade, str(count.total()), *(str(count[word]) if count[word] else "–" for word in seen))
        for grade, count in counts.items()
    ]
    if not rows:
        return ["no claims"]
    return [
        *columns(header, rows, left=3),
        "",
        *columns(("grade", "rows", *seen), sums, left=1),
        "",
        *_sentences(found.findings),
        *_remarks(found.findings),
    ]


def _sentences(findings: tuple[Finding, ...]) -> list[str]:
    """Say what the counts are worth: only predictions can be reproduced."""
    from densing.efficiency.techniques import HELD, untested

    predictions = [finding for finding in findings if finding.grade == "predicted" and finding.ours is not None]
    held = sum(finding.verdict == "reproduced" for finding in predictions)
    words = [
        f"{held} of {len(predictions)} predictions reproduced"
        + (", each noticing at least one broken law of the simulator" if held else "")
        if predictions
        else "nothing was predicted",
        "whatever else agrees predicts nothing: it went in, is arithmetic or a count, our own measurement, or was "
        "fitted beside",
    ]
    nulls = [finding for finding in findings if finding.null_error is not None and finding.error is not None]
    closer = sum(abs(finding.error or 0.0) < abs(finding.null_error or 0.0) - 0.001 for finding in nulls)
    if nulls:
        words.append(
            f"of {len(nulls)} calibrated figures {closer} come closer (by over 0.1 point) than the null model, which "
            "has no simulator"
        )
    blind = [row for row in findings if row.mutations and row.verdict in HELD and not row.turned_by]
    if blind:
        words.append(f"{len(blind)} calibrated rows that agree notice no broken law: {', '.join(_ids(blind))}")
    unseen = untested([finding.to_dict() for finding in findings])
    if unseen:
        words.append(f"no row that holds notices {', '.join(unseen)}: these figures do not test it")
    less = sum(finding.evidence != "first-hand" for finding in findings)
    if less:
        words.append(f"{less} of the published figures are not first-hand: see the column 'known'")
    return words


def _ids(findings: list[Finding]) -> list[str]:
    return [finding.claim for finding in findings]


def _row(finding: Finding) -> tuple[str, ...]:
    own = " (own)" if finding.grade == "own measurement" else ""
    return (
        finding.claim,
        finding.technique,
        words.cut(f"{finding.what} ({finding.setup})" if finding.setup else finding.what, 52),
        f"{figure(finding.published)} {finding.unit}".strip() + own,
        finding.evidence,
        figure(finding.ours),
        _percent(finding.error),
        figure(finding.null) if isinstance(finding.null, str) else _percent(finding.null_error),
        "–" if finding.tolerance is None else f"{100 * finding.tolerance:.0f} %",
        finding.grade,
        finding.verdict,
        # "ring costs x 3" and "no overlap" in a word each.
        " ".join(key.removeprefix("no ").split()[0] for key in finding.turned_by) or "–",
    )


def _percent(error: float | None) -> str:
    return "–" if error is None else f"{100 * error:+.1f} %"


def figure(value: float | str | None) -> str:
    """Return a figure in few digits, a text as it is, a dash for none.

    Examples
    --------
    >>> figure(304736.0), figure(0.35), figure("a > b"), figure(None)
    ('304,736', '0.35', 'a > b', '–')
    """
    if value is None or isinstance(value, str):
        return "–" if value is None else value
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _remarks(findings: tuple[Finding, ...]) -> list[str]:
    """Say, once each, what went into the figures of ours, which assumptions decide them, and why some are missing."""
    told: dict[str, list[str]] = {}
    for finding in findings:
        null = f"null model: {finding.null_model}" if finding.null_model else ""
        decided = decision(finding.to_dict())
        for text in (finding.inputs, finding.note, null, decided and f"the verdict {decided}"):
            if text:
                told.setdefault(text, []).append(finding.claim)
    return ["", *(f"{', '.join(claims)}: {text}" for text, claims in told.items())] if told else []


def decision(row: Mapping[str, Any]) -> str:
    """Say which of a finding's assumptions turn its verdict, and what ours would be; empty where none is tried.

    Examples
    --------
    >>> decision({"assumptions": {"half the link": 18.56, "int8 on the wire": 5.6}, "decided_by": ["int8 on the wire"]})
    'turns with int8 on the wire (5.6); holds with half the link (18.56)'
    """
    tried: Mapping[str, float | str | None] = row.get("assumptions") or {}
    turning = [name for name in tried if name in row["decided_by"]]
    parts = (("turns with", turning), ("holds with", [name for name in tried if name not in turning]))

    def told(value: float | str | None) -> str:
        return "no answer" if value is None else value if isinstance(value, str) else f"{value:.4g}"

    return "; ".join(
        f"{verb} {', '.join(f'{name} ({told(tried[name])})' for name in names)}" for verb, names in parts if names
    )
