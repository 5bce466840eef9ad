"""How stale a late average is: the anchor's last way, against its ways before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Gap:
    """The penalty ``1 + |x_{t,0} - x_{t-1,0}| / C_t``, C_t being the mean of earlier such norms.

    While there is no earlier way (or the anchor has not moved) the penalty is 1. This is a Gap-Aware form, after
    Barkai et al., "Gap-Aware Mitigation of Gradient Staleness", arXiv 1909.10802; Eq. 3 of the CO2 paper is not
    available to us.

    Examples
    --------
    >>> gap = Gap()
    >>> [gap.penalty(norm) for norm in (0.0, 2.0, 2.0, 4.0)]
    [1.0, 1.0, 2.0, 3.0]
    """

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def penalty(self, norm: float) -> float:
        """Return the penalty of a norm, and remember the norm."""
        found = 1.0 + norm * self.count / self.total if self.count else 1.0
        if norm > 0.0:
            self.total, self.count = self.total + norm, self.count + 1
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return sum and number of the norms."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with these norms."""
        self.total, self.count = float(state["total"]), int(state["count"])
