"""HiGHS through scipy, silent and in its own scale."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from densing.efficiency.techniques.taccl.rows import Rows


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
        kept = os.dup(1)
    except OSError:
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
