"""Five modes instead of one, on Boston housing: `bench.papers.uci_regression` with other defaults.

    python -m bench.papers.uci_regression_5_modes [--seeds 0 1 ...]

The other sets are left out, for time.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.papers import uci_regression


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing, prints and saves."""
    uci_regression.main(argv, modes=5, sets=("bostonHousing",), module="bench.papers.uci_regression_5_modes")


if __name__ == "__main__":
    main()
