"""What ``densing techniques validate`` prints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from densing.cli.columns import columns, shortened
from densing.cli.output import emit_plain, finish, say, show_notes, timed_bar

if TYPE_CHECKING:
    from densing.techniques.validate import Finding, Validation


def answer(names: tuple[str, ...], *, fast: bool, html: Path | None, json: bool) -> None:
    """Check the claims and print, or write, what became of each."""
    from densing.techniques.validate import validate

    with timed_bar(quiet=json, label="claims") as show:
        found = validate(names, fast=fast, progress=lambda claim, done, total: show(claim, float(done), float(total)))
    if html is not None:
        from densing.report.techniques import build_techniques

        build_techniques(html, claims=found.findings, notes=found.notes)
        say(f"wrote {html}")
    if json:
        emit_plain([finding.to_dict() for finding in found.findings])
    else:
        typer.echo("\n".join(lines(found)))
    show_notes(found.notes)
    finish(found.notes)


def lines(found: Validation) -> list[str]:
    """Return the table and its sum, line by line."""
    header = ("claim", "technique", "what", "published", "known", "ours", "error", "allowed", "verdict")
    rows = [_row(finding) for finding in found.findings]
    counts = Counter(finding.verdict for finding in found.findings)
    told = ", ".join(f"{number} {word}" for word, number in counts.items()) or "no claims"
    known = Counter(finding.evidence for finding in found.findings)
    less = sum(number for word, number in known.items() if word != "first-hand")
    more = [f"{less} of the published figures are not first-hand: see the column 'known'"] if less else []
    fitted = sum(finding.fitted and finding.verdict == "reproduced" for finding in found.findings)
    if fitted:
        more.insert(0, f"{fitted} of the reproduced are fitted to the figure itself: they predict nothing")
    return [*(columns(header, rows, left=3) if rows else []), "", told, *more, *_remarks(found.findings)]


def _row(finding: Finding) -> tuple[str, ...]:
    error = "–" if finding.error is None else f"{100 * finding.error:+.1f} %"
    return (
        finding.claim,
        finding.technique,
        shortened(f"{finding.what} ({finding.setup})" if finding.setup else finding.what, 52),
        f"{figure(finding.published)} {finding.unit}".strip(),
        finding.evidence,
        figure(finding.ours),
        error,
        "–" if finding.tolerance is None else f"{100 * finding.tolerance:.0f} %",
        finding.verdict + (" (fitted)" if finding.fitted and finding.verdict == "reproduced" else ""),
    )


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
    """Say, once each, what went into the figures of ours, and why some are missing."""
    told: dict[str, list[str]] = {}
    for finding in findings:
        for text in (finding.inputs, finding.note):
            if text:
                told.setdefault(text, []).append(finding.claim)
    return [""] + [f"{', '.join(claims)}: {text}" for text, claims in told.items()] if told else []
