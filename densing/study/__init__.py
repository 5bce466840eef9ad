"""The main job: from a catalogue to a doubling time with its checks."""

from densing.study.multiverse import PAPER_MONTHS, PAPER_WINDOW, multiverse, replication
from densing.study.result import Study
from densing.study.run import StudyOptions, run_study

__all__ = ["PAPER_MONTHS", "PAPER_WINDOW", "Study", "StudyOptions", "multiverse", "replication", "run_study"]
