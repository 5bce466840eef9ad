"""Laws by name."""

from __future__ import annotations

import inspect
from typing import Any

from densing.core import DomainError, InputError, UnknownNameError
from densing.scores.laws.base import Law
from densing.scores.laws.broken import Broken
from densing.scores.laws.powers import Chinchilla, ChinchillaWithoutOffset, DensingLoss, Power, PowerOffset
from densing.scores.laws.sigmoids import Logistic, Sigmoid, SigmoidFixed
from densing.scores.laws.two_step import TwoStep

_LAWS: dict[str, Any] = {
    law.name: law
    for law in (
        Power,
        PowerOffset,
        Chinchilla,
        ChinchillaWithoutOffset,
        DensingLoss,
        Sigmoid,
        SigmoidFixed,
        Logistic,
        TwoStep,
        Broken,
    )
}


def law_names() -> list[str]:
    """Return the names that :func:`get_law` knows.

    Examples
    --------
    >>> "chinchilla" in law_names()
    True
    """
    return list(_LAWS)


def get_law(name: str, **options: Any) -> Law:
    """Return a law by name.

    Parameters
    ----------
    name : str
        One of :func:`law_names`.
    **options
        The law's options, such as ``floor=0.25`` for ``logistic``.

    Raises
    ------
    UnknownNameError
        When there is no such law.
    InputError
        When an option is unknown or out of range.

    Examples
    --------
    >>> get_law("chinchilla").equation
    'L = E + A N^-alpha + B D^-beta'
    >>> get_law("logistic", floor=0.25).options
    {'floor': 0.25, 'ceiling': None}
    """
    if name not in _LAWS:
        raise UnknownNameError("law", name, _LAWS)
    known = [] if _LAWS[name].__init__ is object.__init__ else list(inspect.signature(_LAWS[name]).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"law {name}: unknown option {unknown[0]!r}; it takes {', '.join(known) or 'none'}")
    try:
        law: Law = _LAWS[name](**options)
    except (DomainError, TypeError) as error:
        raise InputError(str(error)) from error
    return law
