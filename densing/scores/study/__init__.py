"""The main job: from a catalog to a doubling time with its checks."""

from densing.scores.study.measured import Measured, place_measured
from densing.scores.study.multiverse import PAPER_MONTHS, PAPER_WINDOW, multiverse, replication
from densing.scores.study.result import Study
from densing.scores.study.run import StudyOptions, run_study

__all__ = [
    "PAPER_MONTHS",
    "PAPER_WINDOW",
    "Measured",
    "Study",
    "StudyOptions",
    "multiverse",
    "place_measured",
    "replication",
    "run_study",
]
