"""Profiles of runs for notebooks: what was hidden, what was exposed, and what a job without slow workers would take."""

from densing.efficiency.profile import RunProfile, profile_run, what_if_job

__all__ = ["RunProfile", "profile_run", "what_if_job"]
