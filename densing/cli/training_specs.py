"""What ``densing train`` is asked for, as one specification per technique and seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from densing.core import InputError, UnknownNameError
from densing.efficiency.parallel import LmShape, RunSpec

if TYPE_CHECKING:
    from densing.efficiency.techniques import Technique

SHAPES: Mapping[str, LmShape] = {
    "tiny": LmShape(layers=2, hidden=64, heads=2, ffn=176),
    "small": LmShape(),
    "medium": LmShape(layers=6, hidden=512, heads=8, ffn=1408),
}
_MOST_SEEDS = 1000


def shape(name: str, **changes: int | None) -> LmShape:
    """Return a model by name, with what the user changes of it.

    Raises
    ------
    UnknownNameError
        When there is none of that name.
    InputError
        When heads of even width cannot share its width.

    Examples
    --------
    >>> shape("tiny", layers=3).layers
    3
    """
    if name not in SHAPES:
        raise UnknownNameError("model", name, SHAPES)
    found = replace(SHAPES[name], **{field: value for field, value in changes.items() if value is not None})
    if found.hidden % (2 * found.heads):
        raise InputError(
            f"--hidden {found.hidden} --heads {found.heads}: hidden must be a multiple of twice the heads; change one"
        )
    return found


def specs(
    base: RunSpec, techniques: str, seeds: str, out: Path, tau: int | None, settings: tuple[str, ...]
) -> list[RunSpec]:
    """Return one specification per technique and seed, in the order given.

    Raises
    ------
    InputError, UnknownNameError
        When a technique, a knob or a seed is none, or is given twice.
    """
    names, numbers = _names(techniques), _seeds(seeds)
    given = _settings(names, tau, settings)
    alone = len(names) == 1 and len(numbers) == 1
    return [
        replace(
            base,
            technique=name,
            knobs=given[name],
            seed=seed,
            out=str(out if alone else out / f"{name}-seed{seed}"),
        )
        for name in names
        for seed in numbers
    ]


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--technique: name at least one; `densing techniques list` shows them")
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise InputError(f"--technique: {double[0]} is named twice; name it once")
    return names


def _seeds(text: str) -> list[int]:
    """Parse seeds.

    Examples
    --------
    >>> _seeds("0, 1,2")
    [0, 1, 2]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InputError(f"--seed {text[:60]!r}: write whole numbers from 0 up, with commas between")
    numbers = [int(part) for part in parts]
    if len(set(numbers)) < len(numbers) or len(numbers) > _MOST_SEEDS:
        raise InputError(f"--seed {text[:60]!r}: give each seed once, {_MOST_SEEDS} at most")
    return numbers


def _settings(names: list[str], tau: int | None, texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return every knob of a real run of each technique: as set, or its default."""
    from densing.cli.techniques_compare import settings
    from densing.efficiency.techniques import get_technique

    found = {name: get_technique(name) for name in names}
    shared = [*texts, *([f"tau={tau}"] if tau is not None else [])]
    asked = settings(tuple(place for text in shared for place in _places(text, found)))
    return {name: {**_defaults(technique), **asked.get(name, {})} for name, technique in found.items()}


def _places(text: str, techniques: Mapping[str, Technique]) -> list[str]:
    """Return a setting for each technique that it is meant for: the one it names, or all that have the knob."""
    place, _, _ = text.partition("=")
    name, dot, knob = place.rpartition(".")
    if dot:
        if name not in techniques:
            raise InputError(f"--set {text}: {name} is not among the techniques to run; add it to --technique")
        if knob not in _defaults(techniques[name]):
            raise _no_knob(knob, {name: techniques[name]})
        return [text]
    having = [name for name, technique in techniques.items() if place in _defaults(technique)]
    if not having:
        raise _no_knob(place, techniques)
    return [f"{name}.{text}" for name in having]


def _no_knob(knob: str, techniques: Mapping[str, Technique]) -> InputError:
    """Say that a knob does not exist, or that only a plan has it."""
    if any(knob == each.name for technique in techniques.values() for each in technique.knobs):
        return InputError(
            f"--set {knob}: changes plans only (`densing techniques compare`), not a real run of "
            f"{', '.join(techniques)}; leave it out"
        )
    known = sorted({name for technique in techniques.values() for name in _defaults(technique)})
    return UnknownNameError(f"knob of {', '.join(techniques)}:", knob, known)


def _defaults(technique: Technique) -> dict[str, Any]:
    """Return the knobs that a real run has."""
    unused = getattr(technique, "plan_only", ())
    return {knob.name: knob.default for knob in technique.knobs if knob.name not in unused}
