"""Any table as named columns, and those as numbers and levels that a model can take."""

from bayescope.tables.columns import Column
from bayescope.tables.encoding import CategoricalEncoding, Encoded, NumericEncoding, TableEncoding
from bayescope.tables.reading import read_table

__all__ = [
    "CategoricalEncoding",
    "Column",
    "Encoded",
    "NumericEncoding",
    "TableEncoding",
    "read_table",
]
