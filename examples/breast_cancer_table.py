"""Writes scikit-learn's breast-cancer data as CSV: 30 measurements of cell nuclei a row, and `malignant`, 0 or 1.

Run it with the path to write: `python examples/breast_cancer_table.py breast_cancer.csv`.
"""

from __future__ import annotations

import sys

from sklearn.datasets import load_breast_cancer


def main(path: str) -> None:
    """Writes the 569 rows to `path`; scikit-learn codes malignant as 0, the table as 1."""
    table = load_breast_cancer(as_frame=True).frame
    table["malignant"] = 1 - table.pop("target")
    table.columns = table.columns.str.replace(" ", "_")
    table.to_csv(path, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
