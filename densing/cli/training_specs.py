"""What ``densing train`` is asked for, as one specification per technique and seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from densing.core import InputError, UnknownNameError
from densing.efficiency.parallel import LmShape, RunSpec

if TYPE_CHECKING:
    pass

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
    from densing.efficiency.techniques import run_settings

    names, numbers = _names(techniques), _seeds(seeds)
    given = run_settings(names, settings, tau=tau)
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
