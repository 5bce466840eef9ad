"""Cost of a whole training run from one planned step: days, failures, device hours, money, energy and carbon.

A run loses time to checkpoints and to failures. With M seconds between failures of the whole cluster, delta to write a
checkpoint, R to restart and tau of work between checkpoints, work of T_s seconds takes

.. math:: T = M e^{R/M} \\left(e^{(\\tau + \\delta)/M} - 1\\right) T_s / \\tau

and the best tau is near sqrt(2 delta M) [1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9] - delta. Failures are taken to
come independently and at a constant rate.

Source: Daly, Future Generation Computer Systems 22 (2006) 303-312, equations 20 and 37; Young, CACM 17 (1974) 530-531;
recalled, held to a simulation of failures in the tests.
"""

from __future__ import annotations

import math

from densing.core import InputError, Record, formatting
from densing.efficiency.throughput.layouts import LayoutPlan
from densing.efficiency.throughput.table import watts_of

HOUR, DAY = 3600.0, 86400.0
STATE_BYTES = 14
"""Bytes per parameter of a checkpoint: weights in 16 bits, and their copy and both moments of Adam in 32."""


class Terms(Record, frozen=True):
    """Terms of a run: its tokens, prices and failure rates.

    Parameters
    ----------
    tokens : float
    price : float or None
        Money per device and hour.
    mtbf_hours : float or None
        Mean hours between failures of one device (with its share of host and network); None: no failures are counted.
    restart_s : float
        Seconds from a failure until training resumes.
    write_s : float or None
        Seconds that a checkpoint blocks the run; None: its state at ``write_bps`` from every device.
    write_bps : float
        Bytes per second that each device writes.
    carbon : float or None
        Kilograms of CO2e per kilowatt-hour.
    draw : float
        Share of the board's power that a device draws while it trains.
    pue : float
        Power usage effectiveness: power of the data centre over that of its computers.
    """

    tokens: float
    price: float | None = None
    mtbf_hours: float | None = None
    restart_s: float = 600.0
    write_s: float | None = None
    write_bps: float = 1e8
    carbon: float | None = None
    draw: float = 0.8
    pue: float = 1.2


class Span(Record, frozen=True):
    """A figure and its range, which follows from the step's."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Span:
        """Return the figure and its ends multiplied."""
        return Span(self.value * factor, self.low * factor, self.high * factor)

    @property
    def words(self) -> str:
        """The value with its ends.

        Examples
        --------
        >>> Span(2.0, 1.5, 2.75).words
        '2.00 (1.50 to 2.75)'
        """
        return "{} ({} to {})".format(*map(formatting.digits, (self.value, self.low, self.high)))


class Budget(Record, frozen=True):
    """Cost of a run.

    Parameters
    ----------
    tokens : float
    days, device_hours : Span
        With checkpoints, failures and restarts.
    cost, kwh, co2e_kg : Span or None
        None without a price, the device's power or the grid's carbon.
    goodput : float
        Share of the time spent training.
    failures : float
        Expected failures; 0 where none are counted.
    checkpoint_every_s, write_s : float or None
        Seconds of work between checkpoints, and to write one; None where no failures are counted.
    assumed : tuple of str
        Defaults that were assumed, in words.
    """

    tokens: float
    days: Span
    device_hours: Span
    goodput: float
    failures: float = 0.0
    checkpoint_every_s: float | None = None
    write_s: float | None = None
    cost: Span | None = None
    kwh: Span | None = None
    co2e_kg: Span | None = None
    assumed: tuple[str, ...] = ()


def checkpoint_interval(write_s: float, between_s: float) -> float:
    """Return the optimal seconds of work between checkpoints, by Daly's estimate.

    Parameters
    ----------
    write_s : float
        Seconds to write one.
    between_s : float
        Mean seconds between failures of the whole cluster.

    Examples
    --------
    >>> round(checkpoint_interval(60.0, 10_000.0))
    1056
    """
    if write_s >= 2 * between_s:
        return between_s
    ratio = write_s / (2 * between_s)
    return math.sqrt(2 * write_s * between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s


def slowdown(work_s: float, write_s: float, between_s: float, restart_s: float) -> float:
    """Return the total time of a run over its training time.

    Parameters
    ----------
    work_s : float
        Seconds of work between checkpoints.
    write_s, between_s, restart_s : float
        To write one, between failures of the whole cluster, and to restart.

    Examples
    --------
    >>> round(slowdown(1056.0, 60.0, 10_000.0, 600.0), 3)
    1.187
    """
    try:
        return between_s * math.exp(restart_s / between_s) * math.expm1((work_s + write_s) / between_s) / work_s
    except OverflowError:
        return math.inf


def budget(plan: LayoutPlan, terms: Terms) -> Budget:
    """Return the cost of a run of so many tokens with a plan's first layout.

    Parameters
    ----------
    plan : LayoutPlan
        Of :func:`densing.efficiency.throughput.plan_layout`.
    terms : Terms

    Raises
    ------
    InputError
        For terms out of range, and where a cluster fails faster than a checkpoint is written.
    """
    _check(terms)
    layout, devices, assumed = plan.layouts[0], plan.devices, []
    write = terms.write_s
    if write is None:
        write = STATE_BYTES * plan.parameters / (devices * terms.write_bps)
    every = between = None
    lost = 1.0
    if terms.mtbf_hours is not None:
        between = HOUR * terms.mtbf_hours / devices
        every = checkpoint_interval(write, between)
        lost = slowdown(every, write, between, terms.restart_s)
        if not math.isfinite(lost) or write >= between:
            raise InputError(
                f"mtbf: {devices:,} devices fail every {between:,.0f} s and a checkpoint takes {write:,.0f} s; give "
                "devices that fail less often, fewer of them, or a faster --checkpoint"
            )
        if terms.write_s is None:
            assumed.append(
                f"a checkpoint of {STATE_BYTES} bytes a parameter, written by every device at "
                f"{terms.write_bps / 1e9:g} GB/s"
            )
        assumed.append(f"{terms.restart_s:,.0f} s to restart")
    seconds = terms.tokens / layout.tokens_per_s * lost
    time = Span(seconds, seconds * layout.low_s / layout.step_s, seconds * layout.high_s / layout.step_s)
    hours = time.times(devices / HOUR)
    watts = watts_of(plan.device)
    kwh = None
    if watts is not None:
        kwh = hours.times(watts * terms.draw * terms.pue / 1000)
        assumed.append(f"{100 * terms.draw:.0f} % of {watts:,.0f} W per device, PUE {terms.pue:g}")
    return Budget(
        terms.tokens,
        time.times(1 / DAY),
        hours,
        goodput=1 / lost,
        failures=seconds / between if between else 0.0,
        checkpoint_every_s=every,
        write_s=write if every is not None else None,
        cost=None if terms.price is None else hours.times(terms.price),
        kwh=kwh,
        co2e_kg=None if terms.carbon is None or kwh is None else kwh.times(terms.carbon),
        assumed=tuple(assumed),
    )


def _check(terms: Terms) -> None:
    for name, value, low, high in (
        ("tokens", terms.tokens, 1, 1e20), ("price", terms.price, 0, 1e6), ("mtbf", terms.mtbf_hours, 0.01, 1e9),
        ("restart", terms.restart_s, 0, 1e7), ("checkpoint", terms.write_s, 1e-6, 1e7),
        ("carbon", terms.carbon, 0, 100), ("draw", terms.draw, 0.01, 1.5), ("pue", terms.pue, 1, 10),
    ):  # fmt: skip
        if value is not None and not low <= value <= high:
            raise InputError(f"{name}: {value:g} is out of range; give {low:g} to {high:g}")
