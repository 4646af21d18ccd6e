"""Every posterior of one model on one table, judged in the same terms and against a reference."""

from bayescope.comparison.comparison import FILES, Comparison, compare

__all__ = ["FILES", "Comparison", "compare"]
