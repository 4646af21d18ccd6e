"""Reports: one self-contained HTML file on what a model learnt and how far it can be trusted."""

from bayescope.report.report import report, write_comparison

__all__ = ["report", "write_comparison"]
