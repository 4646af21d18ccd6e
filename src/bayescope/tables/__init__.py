"""Any table as named columns, and those as numbers and levels that a model can take."""

from bayescope.tables.codes import Coder, LabelCoder, NumberCoder
from bayescope.tables.column_sums import ColumnMoments, LabelsSeen, Tally, numeric_encoding
from bayescope.tables.columns import Column
from bayescope.tables.encoding import CategoricalEncoding, Encoded, NumericEncoding, TableEncoding
from bayescope.tables.preprocessing import Preprocessing, TableSeen
from bayescope.tables.reading import read_table
from bayescope.tables.row_files import Constant, RowFile
from bayescope.tables.scaling import Quantiles, Standard
from bayescope.tables.suspicion import warn_of_numbers

__all__ = [
    "CategoricalEncoding",
    "Coder",
    "Column",
    "ColumnMoments",
    "Constant",
    "Encoded",
    "LabelCoder",
    "LabelsSeen",
    "NumberCoder",
    "NumericEncoding",
    "Preprocessing",
    "Quantiles",
    "RowFile",
    "Standard",
    "TableEncoding",
    "TableSeen",
    "Tally",
    "numeric_encoding",
    "read_table",
    "warn_of_numbers",
]
