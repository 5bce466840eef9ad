"""Checks of the options that data-parallel methods take, and what an experiment with them gives; without torch."""

from __future__ import annotations

from typing import Any, NamedTuple

from densing.core import InputError


class Outcome(NamedTuple):
    """How an experiment on clients ends (:func:`densing.efficiency.parallel.digits_experiment`).

    Attributes
    ----------
    accuracy, loss : float
        Mean over the clients, each with its own weights (where it has) on its own test images.
    sent : float
        Bytes of one client's packets, a round.
    kept : float
        Share of the rows' weights that are left, of methods with masks.
    """

    accuracy: float
    loss: float
    sent: float
    kept: float


def whole(name: str, value: Any, minimum: int) -> int:
    """Return a whole number of at least ``minimum``.

    Raises
    ------
    InputError

    Examples
    --------
    >>> whole("tau", 8, 1)
    8
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{name}={value!r}: must be a whole number from {minimum} up")
    return value


def number(name: str, value: Any, minimum: float, below: float = float("inf"), *, strict: bool = False) -> float:
    """Return a number from ``minimum`` (``strict``: above it) to below ``below``.

    Raises
    ------
    InputError

    Examples
    --------
    >>> number("outer_lr", 1, 0.0)
    1.0
    """
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not minimum <= value < below or (strict and value == minimum):
        above = "above" if strict else "from"
        limit = "" if below == float("inf") else f" and below {below:g}"
        raise InputError(f"{name}={value!r}: must be a number {above} {minimum:g}{limit}")
    return float(value)


def steps_of_a_turn(tau: int, fragments: int, delay: int = 0) -> int:
    """Return the steps between the outer steps of two fragments.

    Raises
    ------
    InputError
        When the fragments do not divide tau, or a mean would travel for longer than that.

    Examples
    --------
    >>> steps_of_a_turn(100, 4, 5)
    25
    """
    whole("tau", tau, 1)
    whole("fragments", fragments, 1)
    whole("delay", delay, 0)
    if tau % fragments:
        raise InputError(f"fragments={fragments}: must divide tau={tau}")
    turn = tau // fragments
    if delay >= turn:
        raise InputError(f"delay={delay}: must be below the {turn} steps between two fragments (tau / fragments)")
    return turn
