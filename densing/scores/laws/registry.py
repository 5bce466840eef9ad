"""Laws by name. A new law is a class and one line here; the command line's help and the property tests follow."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from densing.core import DomainError, InputError, UnknownNameError

if TYPE_CHECKING:
    from densing.scores.laws.base import BaseLaw, Law

# Module and class below this folder; a law is loaded when it is asked for, so that its name alone needs no numpy.
_LAWS = {
    "power": "powers:Power",
    "power-offset": "powers:PowerOffset",
    "chinchilla": "powers:Chinchilla",
    "chinchilla-e0": "powers:ChinchillaWithoutOffset",
    "densing-loss": "powers:DensingLoss",
    "sigmoid": "sigmoids:Sigmoid",
    "sigmoid-fixed": "sigmoids:SigmoidFixed",
    "logistic": "sigmoids:Logistic",
    "two-step": "sigmoids:TwoStep",
    "broken": "powers:Broken",
    "log-linear": "abilities:LogLinear",
}


def law_names() -> list[str]:
    """Return the names that :func:`get_law` knows.

    Examples
    --------
    >>> "chinchilla" in law_names()
    True

    See Also
    --------
    get_law
    """
    return list(_LAWS)


def law_class(name: str) -> type[BaseLaw]:
    """Return the class of a law that :func:`law_names` lists."""
    module, _, attribute = _LAWS[name].partition(":")
    return getattr(import_module(f"densing.scores.laws.{module}"), attribute)


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

    See Also
    --------
    law_names, fit_law
    """
    if name not in _LAWS:
        raise UnknownNameError("law", name, _LAWS)
    factory: Any = law_class(name)
    known = [] if factory.__init__ is object.__init__ else list(inspect.signature(factory).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"law {name}: unknown option {unknown[0]!r}; it takes {', '.join(known) or 'none'}")
    try:
        law: Law = factory(**options)
    except (DomainError, TypeError) as error:
        raise InputError(str(error)) from error
    return law
