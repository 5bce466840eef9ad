"""One self-contained HTML file from a study or from a profiled run, and the replication page.

Each is imported on first use: a study's report needs what a profile's does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME_OF = {
    "build_profile_report": "densing.report.efficiency",
    "build_replication": "densing.report.replication",
    "build_report": "densing.report.build",
    "build_techniques": "densing.report.techniques",
}
__all__ = ["build_profile_report", "build_replication", "build_report", "build_techniques"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'densing.report' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
