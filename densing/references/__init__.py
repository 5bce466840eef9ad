"""The rulers: reference families, their shipped fits, and how they were made."""

from densing.laws import D0_PAPER
from densing.references.build import build_reference
from densing.references.families import Family, family_names, get_family
from densing.references.ladder import load_ladder
from densing.references.members import SKILLS, target_scores
from densing.references.ruler import Reference
from densing.references.store import available_benchmarks, build_all, load_reference, stale_fits
from densing.references.two_step import ladder_misses

__all__ = [
    "D0_PAPER",
    "SKILLS",
    "Family",
    "Reference",
    "available_benchmarks",
    "build_all",
    "build_reference",
    "family_names",
    "get_family",
    "ladder_misses",
    "load_ladder",
    "load_reference",
    "stale_fits",
    "target_scores",
]
