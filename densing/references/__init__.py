"""The rulers: reference families, their shipped fits, and how they were made."""

from densing.references.families import D0_PAPER, Family, family_names, get_family
from densing.references.ladder import load_ladder
from densing.references.members import SKILLS, target_scores
from densing.references.ruler import Reference
from densing.references.store import available_benchmarks, load_reference

__all__ = [
    "D0_PAPER",
    "SKILLS",
    "Family",
    "Reference",
    "available_benchmarks",
    "family_names",
    "get_family",
    "load_ladder",
    "load_reference",
    "target_scores",
]
