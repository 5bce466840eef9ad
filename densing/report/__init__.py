"""One self-contained HTML file from a study, and the replication page."""

from densing.report.build import build_report
from densing.report.replication import build_replication

__all__ = ["build_replication", "build_report"]
