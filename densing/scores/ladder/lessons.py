"""Distillation methods and their options.

What they do is in :mod:`densing.scores.ladder.teaching`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from densing.core import InputError, UnknownNameError
from densing.scores.ladder.arms import Arm


@dataclass(frozen=True)
class Knob:
    """An option of a lesson: its default, and how it is read."""

    default: float | str
    meaning: str
    low: float = 0.0
    whole: bool = False


KNOBS: Mapping[str, Mapping[str, Knob]] = {
    "scratch": {},
    "kd": {
        "weight": Knob(0.9, "share of the teacher's predictions in the loss"),
        "temperature": Knob(1.0, "by which logits are divided", 1e-3),
    },
    "fitnet": {
        "weight": Knob(0.1, "of the distance between states"),
        "layer": Knob(0, "of the student that listens; 0: the middle", 0, whole=True),
        "teacher_layer": Knob(0, "of the teacher; 0: the middle", 0, whole=True),
    },
    "talking": {
        "rounds": Knob(1, "of messages there and back; 0: consistency losses alone", 0, whole=True),
        "w1": Knob(0.003, "of what was talked"),
        "w2": Knob(0.003, "of the consistency of messages"),
        "w3": Knob(0.003, "of the consistency of states"),
        "message": Knob(0, "width of a message; 0: the student's", 0, whole=True),
        "codec": Knob("linear", "encoders and decoders: linear, or dense (two layers)"),
        "layer": Knob(0, "of the student that speaks; 0: the middle", 0, whole=True),
        "teacher_layer": Knob(0, "of the teacher that is spoken to; 0: the middle", 0, whole=True),
    },
}
"""Every lesson and its options.

Weights and temperature by default are the best of a small grid on d12 and one seed that no page uses (100): at a
temperature of 2 to follow the teacher cost 0.3 % of the loss, at 1 it gained 1.6 %.
"""
MOST_ROUNDS = 16


def read_knobs(arm: Arm) -> dict[str, Any]:
    """Return all options of a lesson, numbers as numbers.

    Parameters
    ----------
    arm : Arm
        Whose ``knobs`` are as they were written.

    Raises
    ------
    UnknownNameError
        When there is no such lesson or option.
    InputError
        When a value is none of its option.

    Examples
    --------
    >>> from densing.scores.ladder import parse_arm
    >>> read_knobs(parse_arm("kd:temperature=4"))
    {'weight': 0.9, 'temperature': 4.0}
    """
    if arm.method not in KNOBS:
        raise UnknownNameError("method", arm.method, KNOBS)
    known = KNOBS[arm.method]
    for name in arm.knobs:
        if name not in known:
            raise UnknownNameError(f"option of {arm.method}", name, known)
    return {name: _read(arm, name, knob) for name, knob in known.items()}


def _read(arm: Arm, name: str, knob: Knob) -> Any:
    text = arm.knobs.get(name)
    if text is None:
        return knob.default
    if isinstance(knob.default, str):
        if text not in ("linear", "dense"):
            raise UnknownNameError(f"{name} of {arm.name}:", text, ("linear", "dense"))
        return text
    try:
        value = int(text) if knob.whole else float(text)
    except ValueError:
        value = math.nan
    high = 1.0 if (arm.method, name) == ("kd", "weight") else MOST_ROUNDS if name == "rounds" else math.inf
    if not (math.isfinite(value) and knob.low <= value <= high):
        kind = "a whole number" if knob.whole else "a number"
        ends = f"from {knob.low:g}" + (f" to {high:g}" if high < math.inf else " up")
        raise InputError(f"--method {arm.name}: {name}={text} is not {kind} {ends}")
    return value
