"""Which steps of a training loop are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from densing.core import InputError


@dataclass(frozen=True)
class Schedule:
    """Which steps are recorded: ``wait`` left alone, ``warmup`` traced and thrown away, ``active`` kept; repeated.

    Raises
    ------
    InputError
        When a number makes no sense.

    Examples
    --------
    >>> Schedule(wait=1, warmup=1, active=3).needed
    5
    >>> Schedule(active=0)
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: record(active=0): a whole number from 1 up is needed
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"record({name}={value!r}): a whole number from {least} up is needed")

    @property
    def needed(self) -> int:
        """Calls of ``step()`` until the first trace is written."""
        return self.wait + self.warmup + self.active
