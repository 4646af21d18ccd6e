"""Reports: one self-contained HTML file on what a model learnt and how far it can be trusted."""

from bayescope.report.report import document, page_of, report, write_comparison

__all__ = ["document", "page_of", "report", "write_comparison"]
