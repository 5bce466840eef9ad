"""Served variants of a model: exit layer, cut, and bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from densing.core import InputError

CUT_BITS = (2, 4, 8, 16)
WEIGHT_BITS = (4, 8, 16)
FULL = 16


@dataclass(frozen=True)
class Variant:
    """One way to serve a model.

    Parameters
    ----------
    exit : int, optional
        Layers that are computed; their last state passes a translator (:func:`fit_translators`) and the model's own
        head. None: all of them, and no translator.
    cut : int, optional
        Layers after which the state is handed over, from 0 (the embedding) to ``exit``. None: it never is.
    cut_bits : int
        Of each number handed over; 16: half precision (float16 where the model computes in float32, else as it is).
    weight_bits : int
        Of each entry of a matrix; 16: weights as they are stored.

    Raises
    ------
    InputError
        When the layers are in another order, or bits are not offered.

    Examples
    --------
    >>> Variant(exit=12, cut=6, cut_bits=8).label
    'exit=12,cut=6,cut_bits=8'
    >>> Variant(exit=4, cut=6)
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: cut=6 lies after exit=4; choose a cut up to the exit
    """

    exit: int | None = None
    cut: int | None = None
    cut_bits: int = FULL
    weight_bits: int = FULL

    def __post_init__(self) -> None:
        """Refuse what cannot be served."""
        for name, least in (("exit", 1), ("cut", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise InputError(f"{name}={value!r} is not a number of layers from {least} up")
        for name, offered in (("cut_bits", CUT_BITS), ("weight_bits", WEIGHT_BITS)):
            if (value := getattr(self, name)) not in offered:
                raise InputError(f"{name}={value!r} is not offered; choose one of {', '.join(map(str, offered))}")
        if self.cut is None and self.cut_bits != FULL:
            raise InputError(f"cut_bits={self.cut_bits} without a cut has no effect; add cut=LAYER")
        if self.cut is not None and self.exit is not None and self.cut > self.exit:
            raise InputError(f"cut={self.cut} lies after exit={self.exit}; choose a cut up to the exit")

    @property
    def label(self) -> str:
        """The options that were chosen, for the name of the model."""
        shown = {name: getattr(self, name) for name in OPTIONS}
        own = {name: value for name, value in shown.items() if value not in (None, FULL)}
        return ",".join(f"{name}={value}" for name, value in own.items())

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Variant:
        """Return the variant that a model's arguments name.

        Examples
        --------
        >>> Variant.of({"pretrained": "a", "exit": 3})
        Variant(exit=3, cut=None, cut_bits=16, weight_bits=16)
        """
        return cls(**{name: args[name] for name in OPTIONS if args.get(name) is not None})


OPTIONS = tuple(field.name for field in fields(Variant))
ARGUMENTS = (*OPTIONS, "translators")
"""Model arguments that ask for a variant."""
UNTRANSLATED = "none"
"""In place of a folder of translators: the model's own norm and head read the state at the exit as it is."""


def variant_grid(
    exits: Iterable[int | None] = (None,),
    cuts: Iterable[int | None] = (None,),
    cut_bits: Iterable[int] = (FULL,),
    weight_bits: Iterable[int] = (FULL,),
) -> list[Variant]:
    """Return every combination, in the order of its parts.

    Parameters
    ----------
    exits, cuts, cut_bits, weight_bits : iterables
        As in :class:`Variant`.

    Raises
    ------
    InputError
        When a combination cannot be served.

    Examples
    --------
    >>> [each.label for each in variant_grid([12, 18], [6], [4, 8])]
    ['exit=12,cut=6,cut_bits=4', 'exit=12,cut=6,cut_bits=8', 'exit=18,cut=6,cut_bits=4', 'exit=18,cut=6,cut_bits=8']
    """
    return [Variant(*each) for each in product(exits, cuts, cut_bits, weight_bits)]
