"""Links as they are written on the command line: ``200mbit``, ``emulated:1gbit``, ``none``."""

from __future__ import annotations

import math
import re
from typing import Literal

from densing.core import InputError, Record

Kind = Literal["none", "shaped", "emulated"]

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_FORM = re.compile(r"(?:(emulated):)?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)([a-z]+)(?::(\d+(?:\.\d+)?)(us|ms|s))?", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LEAST, _MOST = 1e4, 1e12


class Rate(Record, frozen=True):
    """A link between ranks.

    Parameters
    ----------
    kind : {"none", "shaped", "emulated"}
    bytes_per_s : float
        Infinite where there is none.
    latency_s : float
        Per message; only an emulated link adds one.
    text : str
        As it was written.
    """

    kind: Kind
    bytes_per_s: float
    latency_s: float = 0.0
    text: str = "none"

    @property
    def bits_per_s(self) -> float:
        """Bits per second, as network tools count."""
        return 8 * self.bytes_per_s


NONE = Rate("none", math.inf)


def parse_rate(text: str) -> Rate:
    """Read a link.

    Parameters
    ----------
    text : str
        ``none``; a rate in kbit, mbit or gbit per second (decimal) for a shaped interface; ``emulated:`` before it
        for an emulated link, whose latency per message may follow (``emulated:200mbit:5ms``).

    Raises
    ------
    InputError
        When it is none of these, or the rate is below 10 kbit/s or above 1 Tbit/s.

    Examples
    --------
    >>> parse_rate("200mbit").bytes_per_s
    25000000.0
    >>> parse_rate("emulated:1gbit:5ms")
    Rate(kind='emulated', bytes_per_s=125000000.0, latency_s=0.005, text='emulated:1gbit:5ms')
    >>> parse_rate("none").kind
    'none'
    >>> parse_rate("fast")
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: link 'fast': write none, a rate like 200mbit or 1gbit, or emulated:200mbit
    """
    plain = text.strip().lower()
    if plain in ("", "none"):
        return NONE
    match = _FORM.fullmatch(plain)
    if match is None:
        raise InputError(f"link {text[:60]!r}: write none, a rate like 200mbit or 1gbit, or emulated:200mbit")
    emulated, number, unit, wait, wait_unit = match.groups()
    if unit not in _BITS:
        raise InputError(
            f"link {text[:60]!r}: unit {unit[:20]!r} is unknown; write bit, kbit, mbit or gbit (per second)"
        )
    bits = float(number) * _BITS[unit]
    if not _LEAST <= bits <= _MOST:
        raise InputError(f"link {text[:60]!r}: between 10kbit and 1000gbit is needed")
    if wait is not None and not emulated:
        raise InputError(f"link {text[:60]!r}: only an emulated link has a latency; write emulated:{plain}")
    latency = float(wait) * _SECONDS[wait_unit] if wait else 0.0
    if latency > 10:
        raise InputError(f"link {text[:60]!r}: a latency above 10 s; write one like 5ms")
    return Rate("emulated" if emulated else "shaped", bits / 8, latency, plain)
