"""Linear problems over partitions: a sparse classifier, or least squares."""

from __future__ import annotations

from pathlib import Path

from densing.core import InputError, Record, UnknownNameError
from densing.efficiency.simulation.presets import Presets

LOSSES = ("logistic", "squares")
NUMBER = 8
"""Bytes of a weight or gradient entry: a double, as in the code of proxCSL's authors."""
ENTRY = 12
"""Bytes of a stored entry: a double and its column index."""


class Convex(Record, frozen=True):
    """A linear problem over partitions.

    Parameters
    ----------
    n, d : int
        Items and features.
    nnz : int
        Stored entries of all items.
    partitions : int
        Into which the items are divided.
    loss : {"logistic", "squares"}
    name, source, evidence : str

    Examples
    --------
    >>> Convex(15_748, 248_665, 1_200_000, 16).sent
    1989320
    """

    n: int
    d: int
    nnz: int
    partitions: int
    loss: str = "logistic"
    name: str = "classifier"
    source: str = ""
    evidence: str = ""

    @property
    def sent(self) -> int:
        """Bytes of a vector of weights, or of a gradient."""
        return NUMBER * self.d


def check_convex(problem: Convex) -> None:
    """Refuse an inconsistent problem.

    Raises
    ------
    InputError

    Examples
    --------
    >>> check_convex(Convex(10, 5, 51, 2))
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: classifier: nnz: 51 entries of 10 items by 5 features; give at most 50
    """
    for field in ("n", "d", "nnz", "partitions"):
        if getattr(problem, field) < 1:
            raise InputError(f"{problem.name}: {field} is {getattr(problem, field)}; give 1 or more")
    if problem.nnz > problem.n * problem.d:
        raise InputError(
            f"{problem.name}: nnz: {problem.nnz:,} entries of {problem.n:,} items by {problem.d:,} features; give at "
            f"most {problem.n * problem.d:,}"
        )
    if problem.loss not in LOSSES:
        raise UnknownNameError(f"loss of {problem.name}:", problem.loss, LOSSES)


PRESETS = Presets(Convex, Path(__file__).with_suffix(".toml"), "linear problem", check_convex)
convex_names, load_convex = PRESETS.names, PRESETS.load
