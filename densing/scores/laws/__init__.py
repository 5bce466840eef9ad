"""The mathematics of scaling laws: predict, differentiate, invert. numpy only."""

from densing.scores.laws.base import D0_PAPER, BaseLaw, Law, Parameter, invert_one
from densing.scores.laws.registry import get_law, law_names

__all__ = ["D0_PAPER", "BaseLaw", "Law", "Parameter", "get_law", "invert_one", "law_names"]
