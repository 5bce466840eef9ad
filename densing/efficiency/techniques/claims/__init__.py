"""Figures that papers publish of the techniques, and how the simulator answers each.

One module per technique has ``CLAIMS``. Every figure carries how well it is known: ``first-hand`` from the paper or
its authors' code, ``second-hand`` as a review or a reader quotes it, ``derived`` by arithmetic from such figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NOT_AVAILABLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "co2": (
            "the staleness-gap penalty's formula (Eq. 3)",
            "tau of each task in Tables 1 and 2",
            "the rows at 800 Gb/s and at 32 and 64 GPUs",
            "the throughput of SlowMo",
            "CO2's own perplexity on TransNormer-LLM 7B",
            "the full theorem with its constants",
        ),
        "iso": ("the paper's per-size tables", "official code"),
        "t3": ("figures per sub-layer", "official code"),
        "taccl": ("curves by size", "topology and end-to-end set-ups behind the speed-ups of models"),
    }
)
"""What was looked for and found in no readable source; never filled in."""
