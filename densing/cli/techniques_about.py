"""What ``densing techniques list`` and ``show`` say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from densing.cli.output import emit_plain, show_notes, visible
from densing.cli.table import columns
from densing.cli.techniques_claims import figure
from densing.core import words

if TYPE_CHECKING:
    from densing.core import Note
    from densing.efficiency.techniques import Claim, Technique


def show_all(json: bool) -> None:
    """Print every technique in a line or a mapping."""
    from densing.efficiency.techniques import techniques

    found, notes = techniques()
    if json:
        emit_plain([_brief(technique) for technique in found])
    else:
        rows = [
            (each.name, each.role, _runs(each), words.cut(each.paper, 44), words.cut(each.summary, 70))
            for each in found
        ]
        typer.echo("\n".join(columns(("technique", "role", "runs", "paper", "summary"), rows, left=5)))
    show_notes(notes)


def show_one(name: str, json: bool) -> None:
    """Print all there is to know of one technique."""
    from densing.efficiency.techniques import get_technique

    notes: list[Note] = []
    told = about(technique := get_technique(name), notes)
    show_notes(notes)
    if json:
        emit_plain(told)
        return
    typer.echo(visible(f"{technique.name} ({technique.role}): {technique.summary}"))
    typer.echo(visible(f"paper: {technique.paper or 'none'}"))
    typer.echo(visible(f"runs for real: {_runs(technique)}"))
    for title, lines in (("knobs", _knob_lines(told)), ("claims", _claim_lines(told))):
        typer.echo(f"\n{title}:" + ("" if lines else " none"))
        for line in lines:
            typer.echo("  " + line)
    if told["not_available"]:
        typer.echo("\nnot available (in no readable source): " + "; ".join(map(visible, told["not_available"])))


def about(technique: Technique, notes: list[Note]) -> dict[str, Any]:
    """Return a technique as plain data: knobs, claims with their evidence, and what is not available."""
    from densing.efficiency.techniques import NOT_AVAILABLE, claims_of

    knobs = [{"name": knob.name, "default": _plain(knob.default), "help": knob.help} for knob in technique.knobs]
    return {
        **_brief(technique),
        "stand_in": str(getattr(technique, "stand_in", "")),
        "knobs": knobs,
        "claims": [_claim(claim) for claim in claims_of(technique, notes)],
        "not_available": list(NOT_AVAILABLE.get(technique.name, ())),
    }


def _brief(technique: Technique) -> dict[str, Any]:
    keys = ("name", "role", "paper", "summary")
    return {**{key: getattr(technique, key) for key in keys}, "runs": callable(getattr(technique, "run", None))}


def _runs(technique: Technique) -> str:
    if not callable(getattr(technique, "run", None)):
        return "no"
    stand_in = str(getattr(technique, "stand_in", ""))
    return f"stand-in: {stand_in}" if stand_in else "yes"


def _claim(claim: Claim) -> dict[str, Any]:
    keys = ("id", "what", "setup", "published", "unit", "evidence", "source", "tolerance", "inputs", "slow", "grade")
    return {key: getattr(claim, key) for key in keys}


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _knob_lines(told: dict[str, Any]) -> list[str]:
    rows = [(knob["name"], str(knob["default"]), words.cut(knob["help"], 90)) for knob in told["knobs"]]
    return columns(("knob", "default", "meaning"), rows, left=3) if rows else []


def _claim_lines(told: dict[str, Any]) -> list[str]:
    rows = [
        (
            claim["id"],
            words.cut(claim["what"], 48),
            words.cut(claim["setup"], 40),
            f"{figure(claim['published'])} {claim['unit']}".strip(),
            claim["evidence"],
            claim["grade"],
        )
        for claim in told["claims"]
    ]
    return columns(("claim", "what", "set-up", "published", "evidence", "grade"), rows, left=6) if rows else []
