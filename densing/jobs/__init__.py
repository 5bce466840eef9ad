"""Where the jobs of a plan run: this machine, a Slurm cluster, or a back-end of another package."""

from densing.jobs.base import NO_RETRY, Executor, Job, JobEvent, JobResult, OnEvent
from densing.jobs.registry import executor_names, get_executor

__all__ = ["NO_RETRY", "Executor", "Job", "JobEvent", "JobResult", "OnEvent", "executor_names", "get_executor"]
