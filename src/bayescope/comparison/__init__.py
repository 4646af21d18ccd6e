"""Every posterior of one model on one table, judged in the same terms and against a reference."""

from bayescope.comparison.comparison import Comparison
from bayescope.comparison.run import compare

__all__ = ["Comparison", "compare"]
