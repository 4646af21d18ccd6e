"""Any table as named columns, and those as numbers and levels that a model can take.

``__all__`` has what users call; the other names are for the rest of the library and its tests.
"""

from bayescope.tables.codes import Coder as Coder
from bayescope.tables.codes import LabelCoder as LabelCoder
from bayescope.tables.codes import NumberCoder as NumberCoder
from bayescope.tables.column_sums import ColumnMoments as ColumnMoments
from bayescope.tables.column_sums import LabelsSeen as LabelsSeen
from bayescope.tables.column_sums import Tally as Tally
from bayescope.tables.column_sums import numeric_encoding as numeric_encoding
from bayescope.tables.columns import Column
from bayescope.tables.encoding import CategoricalEncoding, Encoded, NumericEncoding, TableEncoding
from bayescope.tables.preprocessing import Preprocessing as Preprocessing
from bayescope.tables.preprocessing import TableSeen as TableSeen
from bayescope.tables.reading import read_table
from bayescope.tables.row_files import RowFile as RowFile
from bayescope.tables.scaling import Quantiles as Quantiles
from bayescope.tables.scaling import Standard as Standard
from bayescope.tables.suspicion import warn_of_text as warn_of_text

__all__ = [
    "CategoricalEncoding",
    "Column",
    "Encoded",
    "NumericEncoding",
    "TableEncoding",
    "read_table",
]
