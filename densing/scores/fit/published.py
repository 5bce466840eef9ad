"""Published laws of loss in size and tokens: constants and their source, as a fit without runs and without draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from densing.core import Note, UnknownNameError
from densing.scores.fit.lawfit import LawFit, hash_data
from densing.scores.laws import get_law

PARAMS, TOKENS = (70e6, 16e9), (5e9, 500e9)
"""Sizes and tokens of the more than 400 models behind both rows (abstract of arXiv 2203.15556)."""


class Published(NamedTuple):
    """Constants of a law as they were published.

    Attributes
    ----------
    theta : tuple of float
        E, A, B, alpha, beta.
    source : str
    warning : str
        What to know before planning with it; empty where there is nothing.
    """

    theta: tuple[float, ...]
    source: str
    warning: str = ""


PUBLISHED = {
    "chinchilla": Published(
        (1.6934, 406.4, 410.7, 0.3392, 0.2849),
        "Hoffmann et al. 2022, arXiv 2203.15556, approach 3; digits of its TeX source, as Besiroglu et al. report them "
        "(recalled)",
        "chinchilla: approach 3 of Hoffmann et al. advises 40 B parameters for the compute of their 70 B model, their "
        "approaches 1 and 2 about 65 B; the same runs fitted again agree with the latter: --law chinchilla-refit",
    ),
    "chinchilla-refit": Published(
        (1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        "Besiroglu et al. 2024, arXiv 2404.10102, table 1 (recalled)",
    ),
}
"""By name. Standard errors are published, correlations of the constants are not, so that there are no draws."""


def published_law(name: str) -> LawFit:
    """Return a published law as a fit without runs; its intervals are unknown.

    Parameters
    ----------
    name : {"chinchilla", "chinchilla-refit"}

    Raises
    ------
    UnknownNameError

    Examples
    --------
    The budget of Gopher and Chinchilla, by the refit of Hoffmann's runs:

    >>> found = published_law("chinchilla-refit").optimal([5.76e23])
    >>> f"{found.params[0]:.1e} {found.tokens[0]:.1e} {found.params_lo[0]}"
    '7.2e+10 1.3e+12 nan'

    See Also
    --------
    fit_law
    """
    if name not in PUBLISHED:
        raise UnknownNameError("published law", name, PUBLISHED)
    row, law = PUBLISHED[name], get_law("chinchilla")
    x = {"params": np.empty(0), "tokens": np.empty(0)}
    return LawFit(
        law=law,
        theta=np.array(row.theta),
        draws=np.empty((0, len(row.theta))),
        objective=0.0,
        status="converged",
        x=x,
        y=np.empty(0),
        residuals=np.empty(0),
        domain={"params": PARAMS, "tokens": TOKENS},
        options={"loss": "huber", "scheme": "case", "n_bootstrap": 0, "seed": 0},
        data_hash=hash_data(x, np.empty(0), None),
        meta={"name": name, "source": row.source},
        notes=(Note("published-law", "warning", row.warning),) if row.warning else (),
    )
