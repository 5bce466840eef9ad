"""What follows from a doubling time: fewer parameters for the same work, more still with cheaper hardware."""

from __future__ import annotations

import math

import pandas as pd

from densing.core import DomainError
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR
from densing.scores.trend.estimate import TrendResult

HARDWARE_YEARS = 2.1
MONTHS_PER_YEAR = DAYS_PER_YEAR / DAYS_PER_MONTH


def factor_per_year(months: float) -> float:
    """Growth of density in a year for a doubling time in months.

    F = 2^(365.25 / (30.44 T)); equally the factor by which parameters of equal performance shrink.

    Source: Xiao et al., arXiv 2412.04315, corollary 1.

    Raises
    ------
    DomainError
        For a doubling time of zero or below.

    Examples
    --------
    >>> round(factor_per_year(3.30), 1)
    12.4
    """
    return 2.0 ** (MONTHS_PER_YEAR / _positive(months))


def parameter_halving(params: float, elapsed_months: float, months: float) -> float:
    """Parameters that match a model of ``params`` parameters after ``elapsed_months``.

    N(t) = N0 2^(-t / T).

    Source: Xiao et al., arXiv 2412.04315, corollary 1.

    Parameters
    ----------
    params : float
        A count.
    elapsed_months : float
        Months after the first model.
    months : float
        Doubling time of density; infinite leaves ``params`` as they are.

    Examples
    --------
    >>> parameter_halving(7e9, 7.0, 3.5)
    1750000000.0
    """
    return params * 2.0 ** (-elapsed_months / _positive(months))


def with_hardware(months: float, hardware_years: float = HARDWARE_YEARS) -> float:
    """Doubling time, in months, of the effective size that a fixed price buys.

    1/T = 1/T_density + 1/T_hardware.

    Source: Xiao et al., arXiv 2412.04315, corollary 3; 2.1 years for FLOP per dollar: Hobbhahn et al. (2023).

    Parameters
    ----------
    months : float
        Doubling time of density.
    hardware_years : float
        Doubling time of computation per price.

    Examples
    --------
    >>> round(with_hardware(95.0 / 30.44) * 30.44, 1)  # days
    84.5
    """
    return 1 / (1 / _positive(months) + 1 / (_positive(hardware_years) * MONTHS_PER_YEAR))


def corollaries(trend: TrendResult, hardware_years: float = HARDWARE_YEARS) -> pd.DataFrame:
    """Draw the consequences of a headline, interval included.

    Parameters
    ----------
    trend : TrendResult
    hardware_years : float

    Returns
    -------
    pandas.DataFrame
        quantity, unit, value, lo, hi, equation; every quantity is monotone in T, so its ends are those of T.
    """
    ends = [float(trend.headline[name]) for name in ("doubling_months", "lo", "hi")]
    rows = [
        ("parameters at equal performance shrink by", "times per year", factor_per_year, "2^(12 months / T)"),
        (
            "effective size at a fixed price doubles in",
            "months",
            lambda months: with_hardware(months, hardware_years),
            f"1/T = 1/T_density + 1/({hardware_years:g} years)",
        ),
    ]
    table = []
    for quantity, unit, make, equation in rows:
        value, *limits = (make(months) for months in ends)
        table.append((quantity, unit, value, min(limits), max(limits), equation))
    return pd.DataFrame(table, columns=["quantity", "unit", "value", "lo", "hi", "equation"])


def _positive(value: float) -> float:
    if math.isnan(value) or value <= 0:
        raise DomainError(f"a doubling time of {value:g}: it must be above zero")
    return value
