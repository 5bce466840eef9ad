"""One self-contained HTML file from a study."""

from densing.report.build import build_report

__all__ = ["build_report"]
