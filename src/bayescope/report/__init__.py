"""Reports: one self-contained HTML file on what a model learnt and how far it can be trusted."""

from bayescope.report.judged import RowNames
from bayescope.report.report import document, page_of, report, write_comparison, write_report

__all__ = ["RowNames", "document", "page_of", "report", "write_comparison", "write_report"]
