"""Mixed-integer programs: rows, each once, and HiGHS through scipy, silent and in its own scale."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Rows:
    """Collects ``low <= sum of coefficient * column <= high``.

    Examples
    --------
    >>> rows = Rows()
    >>> rows.add([(0, 1.0), (1, 1.0)], 1.0, 1.0)
    >>> rows.add([(1, 1.0), (0, 1.0)], 1.0, 1.0)
    >>> rows.build(2).A.shape
    (1, 2)
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], None] = {}

    def add(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        """Add a row; a column that comes more than once counts together."""
        summed: dict[int, float] = {}
        for column, coefficient in terms:
            summed[int(column)] = summed.get(int(column), 0.0) + float(coefficient)
        # Symmetric variables are one column, so many rows come out the same: each is kept once.
        entries = tuple(sorted((c, v) for c, v in summed.items() if v))
        if entries or low > 0:
            self._seen.setdefault((entries, float(low), float(high)))

    def use(self, sent: Any, used: Callable[[int], int], sign: float) -> None:
        """Tie "used" columns to "sent": at least each of them (few are wanted), or at most their sum (many are)."""
        for number in range(sent.shape[1]):
            columns = sorted({int(column) for column in sent[:, number] if column >= 0})
            if sign > 0:
                for column in columns:
                    self.add([(used(number), 1.0), (column, -1.0)], 0.0, math.inf)
            else:
                self.add([(used(number), -1.0), *((column, 1.0) for column in columns)], 0.0, math.inf)

    def build(self, width: int) -> Any:
        """Return the rows as scipy's LinearConstraint over so many columns."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        entries = [(row, c, v) for row, (terms, _, _) in enumerate(self._seen) for c, v in terms]
        row, column, value = zip(*entries, strict=True)
        matrix = coo_array((value, (row, column)), shape=(len(self._seen), width)).tocsc()
        low, high = (np.array([key[side] for key in self._seen]) for side in (1, 2))
        return LinearConstraint(matrix, low, high)


def minimise(objective: Any, rows: Rows, lower: Any, upper: Any, integral: Any, **options: float) -> Any:
    """Return scipy's result of a mixed-integer program.

    Parameters
    ----------
    objective, lower, upper, integral : array (columns,)
    rows : Rows
    **options
        ``time_limit``, ``node_limit``, ``mip_rel_gap``.
    """
    from scipy.optimize import Bounds, milp

    with _silent():
        return milp(
            objective,
            bounds=Bounds(lower, upper),
            constraints=rows.build(len(objective)),
            integrality=np.asarray(integral, np.int8),
            options=options,
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what the solver's C++ prints on its own off the standard output, where commands write their one document."""
    sys.stdout.flush()
    try:
        stdout = os.dup(1)
    except OSError:
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
