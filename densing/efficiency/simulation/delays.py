"""Delays of ranks beyond their work, drawn before a simulation, so that it stays deterministic.

A task of a rank takes its seconds plus a delay. A draw depends on seed, rank, step and the task's place in the step
alone, so that two plans of the same ranks meet the same delays, and a real run those of its plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import InputError, Record, UnknownNameError, read_text

Floats = NDArray[np.float64]

KINDS: Mapping[str, tuple[str, ...]] = {
    "shifted-exp": ("a", "mu"),
    "pareto": ("a", "scale", "shape"),
    "empirical": ("values",),
}
"""The fields of each kind of delay; ``a`` may be left out."""
LASTS = ("task", "step", "run")
WORDS: Mapping[str, str] = {"iid": "task", "persistent": "run"}
LONGEST_S = 1e6


class Delay(Record, frozen=True):
    """A distribution of delays, and how long a draw lasts.

    ``shifted-exp``: ``a + Exp(mu)``. ``pareto``: ``a + scale ((1 - u)^(-1/shape) - 1)``, heavy-tailed (Lomax).
    ``empirical``: any of ``values``, each as likely.

    Parameters
    ----------
    kind : {"shifted-exp", "pareto", "empirical"}
    a : float
        Least delay, seconds.
    mu : float, optional
        Rate of the exponential, per second.
    scale, shape : float, optional
        Of the Pareto, seconds and a number; without a finite mean where ``shape`` is 1 or less.
    values : tuple of float
        Observed delays, seconds.
    lasts : {"task", "step", "run"}
        How long a rank keeps a draw: one per task (``iid``), per step, or for the whole run (``persistent``).
    seed : int

    Notes
    -----
    Source: shifted exponentials are the model of Ozfatura, Ulukus and Gunduz, Entropy 2020, arXiv 2004.04948 (their
    parameters recalled).

    Examples
    --------
    >>> delay = Delay("shifted-exp", a=0.01, mu=10.0)
    >>> round(delay.mean, 6), delay.quantile(0.5).round(4).item()
    (0.11, 0.0793)
    >>> delay.draw(3).round(4).tolist() == delay.draw(5).round(4).tolist()[:3]
    True
    """

    kind: str
    a: float = 0.0
    mu: float | None = None
    scale: float | None = None
    shape: float | None = None
    values: tuple[float, ...] = ()
    lasts: str = "task"
    seed: int = 0

    @property
    def mean(self) -> float:
        """Seconds; infinite for a Pareto whose shape is 1 or less."""
        if self.kind == "empirical":
            return float(np.mean(self.values))
        if self.mu is not None:
            return self.a + 1 / self.mu
        assert self.scale is not None and self.shape is not None
        return self.a + self.scale / (self.shape - 1) if self.shape > 1 else math.inf

    def quantile(self, share: ArrayLike) -> Floats:
        """Return the quantile of the delay at a share from 0 to below 1."""
        share = np.asarray(share, float)
        if self.kind == "empirical":
            values = np.sort(np.array(self.values))
            return values[np.minimum((share * len(values)).astype(np.int64), len(values) - 1)]
        if self.mu is not None:
            return self.a - np.log1p(-share) / self.mu
        assert self.scale is not None and self.shape is not None
        return self.a + self.scale * np.expm1(-np.log1p(-share) / self.shape)

    def draw(self, ranks: int, step: int = 0, task: int = 0) -> Floats:
        """Return the delays of a step's ``task``-th task on each rank, seconds (ranks,)."""
        at = {"task": (step, task), "step": (step, 0), "run": (0, 0)}[self.lasts]
        # Rank r's number is the same however many ranks there are.
        return self.quantile(np.random.default_rng([self.seed, *at]).random(ranks))

    def __str__(self) -> str:
        fields = ",".join(f"{name}={getattr(self, name):g}" for name in KINDS[self.kind] if name != "values")
        what = f"{len(self.values)} values" if self.kind == "empirical" else fields
        return f"{self.kind}:{what},lasts={self.lasts}"


def checked_delay(delay: Delay, where: str) -> Delay:
    """Return the delay if it is valid.

    Raises
    ------
    InputError
        For a field that is missing, out of range, or not of its kind.

    Examples
    --------
    >>> checked_delay(Delay("shifted-exp", mu=0.0), "mine.toml: delay")
    Traceback (most recent call last):
    ...
    densing.core.errors.InputError: mine.toml: delay: mu: 0.0 is out of range; give a number above 0, up to 1e+12
    """
    if delay.kind not in KINDS:
        raise InputError(f"{where}: {UnknownNameError('kind', delay.kind, KINDS)}")
    if delay.lasts not in LASTS:
        raise InputError(f"{where}: {UnknownNameError('lasts', delay.lasts, LASTS)}")
    for name in ("mu", "scale", "shape"):
        value: float | None = getattr(delay, name)
        needed = name in KINDS[delay.kind]
        if needed and value is None:
            raise InputError(f"{where}: {name}: missing; {delay.kind} needs {' and '.join(KINDS[delay.kind])}")
        if not needed and value is not None:
            raise InputError(f"{where}: {name}: not a field of {delay.kind}; it has {', '.join(KINDS[delay.kind])}")
        if value is not None and not 0 < value <= 1e12:
            raise InputError(f"{where}: {name}: {value} is out of range; give a number above 0, up to 1e+12")
    if (delay.kind == "empirical") != bool(delay.values):
        raise InputError(f"{where}: values: required for empirical delays and not allowed for other kinds")
    for value in (delay.a, *delay.values):
        if not 0 <= value <= LONGEST_S:
            raise InputError(f"{where}: {value} is not a delay; give seconds from 0 to {LONGEST_S:g}")
    if delay.seed < 0:
        raise InputError(f"{where}: seed: {delay.seed} is below 0; give a whole number from 0 up")
    return delay


def parse_delay(text: str) -> Delay:
    """Parse a delay from the command line.

    Parameters
    ----------
    text : str
        ``KIND:FIELD=VALUE,…`` with the fields of :class:`Delay`; ``iid`` and ``persistent`` stand for ``lasts=task``
        and ``lasts=run``. ``empirical:FILE`` reads seconds from a file, one a line.

    Raises
    ------
    InputError
        When the text is not a delay.

    Examples
    --------
    >>> parse_delay("shifted-exp:a=0.01,mu=10").mu, parse_delay("pareto:scale=0.1,shape=2,persistent").lasts
    (10.0, 'run')
    """
    where = f"delay {text!r}"
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise InputError(f"{where}: {UnknownNameError('kind', kind, KINDS)}")
    fields: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in rest.split(","))):
        name, sign, value = part.partition("=")
        if not sign and part in WORDS:
            name, value = "lasts", WORDS[part]
        elif not sign and kind == "empirical" and not fields.get("values"):
            name, value = "values", part
        elif name not in (*KINDS[kind], "lasts", "seed") or name == "values":
            raise InputError(f"{where}: {part!r} is none of {', '.join(KINDS[kind])}, lasts, seed, iid, persistent")
        if name in fields:
            raise InputError(f"{where}: {name} is given twice; give it once")
        if name == "lasts":
            fields[name] = value
        elif name == "values":
            fields[name] = _read_values(Path(value))
        else:
            try:
                fields[name] = int(value) if name == "seed" else float(value)
            except ValueError:
                raise InputError(f"{where}: {name}: {value!r} is not a number; give one") from None
    return checked_delay(Delay(kind, **fields), where)


def _read_values(path: Path) -> tuple[float, ...]:
    values = []
    for number, line in enumerate(read_text(path, str(path)).splitlines(), 1):
        if line.strip():
            try:
                values.append(float(line))
            except ValueError:
                raise InputError(
                    f"{path}, line {number}: {line[:40]!r} is not a number of seconds; give one per line"
                ) from None
    return tuple(values)
