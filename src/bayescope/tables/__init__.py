"""Any table as named columns, and those as numbers and levels that a model can take."""

from bayescope.tables.columns import Column
from bayescope.tables.dataset import TableDataset, open_table
from bayescope.tables.encoding import CategoricalEncoding, Encoded, NumericEncoding, TableEncoding
from bayescope.tables.reading import read_table

__all__ = [
    "CategoricalEncoding",
    "Column",
    "Encoded",
    "NumericEncoding",
    "TableDataset",
    "TableEncoding",
    "open_table",
    "read_table",
]
