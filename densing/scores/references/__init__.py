"""The rulers: reference families, their shipped fits, and how they were made."""

from densing.scores.laws import D0_PAPER
from densing.scores.references.build import build_reference, ladder_reference
from densing.scores.references.families import Family, family_names, get_family
from densing.scores.references.ladder import LADDER, LadderData, ladder_data, load_ladder
from densing.scores.references.members import SKILLS, target_scores
from densing.scores.references.ruler import Reference
from densing.scores.references.store import available_benchmarks, build_all, load_reference, stale_fits
from densing.scores.references.two_step import fit_ladder, ladder_misses, loss_ruler

__all__ = [
    "D0_PAPER",
    "LADDER",
    "SKILLS",
    "Family",
    "LadderData",
    "Reference",
    "available_benchmarks",
    "build_all",
    "build_reference",
    "family_names",
    "fit_ladder",
    "get_family",
    "ladder_data",
    "ladder_misses",
    "ladder_reference",
    "load_ladder",
    "load_reference",
    "loss_ruler",
    "stale_fits",
    "target_scores",
]
