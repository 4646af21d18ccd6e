"""Columns of dates as numbers and labels: each date becomes its parts, such as the month."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd

from bayescope.cli.findings import flag
from bayescope.cli.header import check_header, find, split_names
from bayescope.cli.source import Block, Source, rows_at_once
from bayescope.errors import InputError
from bayescope.tables.columns import Kind
from bayescope.tables.suspicion import LIKE_ISO

# The parts of a date, each a column named after its column, such as "sold month". Days are since 1970, with fractions.
PARTS: dict[str, Kind] = {"days": "numeric", "month": "numeric", "weekday": "categorical", "hour": "numeric"}
ISO = "ISO8601"
DAYS = (ISO, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y")
TIMES = ("", " %H:%M", " %H:%M:%S")

# The date that messages show as an example.
TODAY = pd.Timestamp("2024-05-31 10:00:00")

# For each column, the format and the parts that vary, as a model's file keeps them.
Dates = dict[str, list[str]]


def learnt_dates(source: Source, given: Sequence[str]) -> Dates:
    """The format of the dates of some columns, and which of their parts vary.

    Args:
        source: to be read more than once.
        given: the option's values: columns, as a,b or one by one, or column=format in Python's notation.

    Raises:
        InputError: if there is no such column, its cells are not dates, or they can be read in two ways.
    """
    if not given:
        return {}
    named: dict[str, str | None] = {}
    for text in given:
        name, sign, form = text.rpartition("=")
        if sign and text not in source.header and "%" in form:
            named[find("--dates", source.name, name, source.header)] = form
        else:
            named |= {
                find("--dates", source.name, one, source.header): None for one in split_names([text], source.header)
            }
    kinds: dict[str, Kind] = dict.fromkeys(named, "categorical")
    found: dict[str, dict[str, None]] = {name: {} for name in named}
    for block in source.blocks(rows_at_once(len(source.header)), list(named)):
        for name, cells in block.read(kinds).items():
            found[name].update(dict.fromkeys(cells[cells != None]))  # noqa: E711
    return {name: _learnt(source, name, list(found[name]), form) for name, form in named.items()}


def _learnt(source: Source, name: str, cells: list[str], form: str | None) -> list[str]:
    where = f"{source.name}: column {name!r}"
    if not cells:
        raise InputError(f"{where}: expected dates, got none in any row. Leave it out: {flag('--drop', name)}.")
    forms = [form] if form is not None else [day + (time if day != ISO else "") for day in DAYS for time in TIMES]
    read = {each: days for each in dict.fromkeys(forms) if (days := parsed(cells, each)).notna().all()}
    if not read:
        wrong = cells[int(parsed(cells, form or ISO).isna().to_numpy().argmax())]
        raise InputError(
            f"{where}: expected {_example(form or ISO)}, got {wrong!r}. Name "
            f"their format: {flag('--dates', f'{name}=%d.%m.%Y')}; or what stands for a missing value: "
            f"{flag('--missing', wrong)}."
        )
    (first, days), *others = read.items()
    unlike = next((each for each, other in others if not other.equals(days)), None)
    if unlike is not None:
        raise InputError(
            f"{where}: expected dates that can be read in one way, got {cells[0]!r}, day or month first. Say which: "
            f"{flag('--dates', f'{name}={first}')} or {flag('--dates', f'{name}={unlike}')}."
        )
    varying = [part for part, values in parts_of(days).items() if len(pd.unique(values)) > 1]
    return [first, *(varying or ["days"])]


def _example(form: str) -> str:
    return "a date such as 2024-05-31" if form == ISO else f"a date as {form}, such as {TODAY.strftime(form)}"


def parsed(cells: Any, form: str) -> pd.Series:
    """Cells as times without a zone (those with one in UTC), NaT where they are of another format or missing."""
    times = pd.to_datetime(pd.Series(cells, dtype=object), format=form, errors="coerce", utc=True)
    return times.dt.tz_localize(None)


def parts_of(times: pd.Series) -> dict[str, np.ndarray]:
    """The parts of times: numbers with NaN, labels with ``None`` where there is none."""
    known = times.notna()
    days = (times - pd.Timestamp(0)) / pd.Timedelta(days=1)
    weekday = times.dt.day_name().astype(object).where(known, None)
    hour = times.dt.hour + times.dt.minute / 60
    return {
        "days": days.to_numpy(np.float64),
        "month": times.dt.month.to_numpy(np.float64, na_value=np.nan),
        "weekday": weekday.to_numpy(object),
        "hour": hour.to_numpy(np.float64, na_value=np.nan),
    }


def dated(source: Source, dates: Mapping[str, Sequence[str]]) -> Source:
    """A table whose dates are replaced by their parts; the table itself where there are none.

    Raises:
        InputError: if a column is not there, or has the name of a part.
    """
    for name in dates:
        find("TABLE", source.name, name, source.header)
    return DatedSource(source, dates) if dates else source


@final
class DatedSource:
    """A table whose columns of dates are columns of their parts.

    Args:
        source: the table.
        dates: the format and the parts of each column of dates.
    """

    def __init__(self, source: Source, dates: Mapping[str, Sequence[str]]) -> None:
        self._source, self._dates = source, dates
        self._origin = {f"{name} {part}": name for name, (_, *parts) in dates.items() for part in parts}
        columns: list[str] = []
        for name in source.header:
            columns += [part for part, origin in self._origin.items() if origin == name] if name in dates else [name]
        self.header = tuple(columns)
        check_header(source.name, self.header)

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def share(self) -> float | None:
        return self._source.share

    @property
    def notes(self) -> tuple[str, ...]:
        return self._source.notes

    def kinds(self, names: Sequence[str]) -> dict[str, Kind]:
        """What columns hold: parts of dates by their names, all others by what the table says."""
        found = self._source.kinds([name for name in names if name not in self._origin])
        return {name: self._kind(name) if name in self._origin else found[name] for name in names}

    def blocks(self, rows: int, names: Sequence[str] | None = None) -> Iterator[Block]:
        """The rows in order, with the parts of the dates."""
        wanted = self.header if names is None else names
        for block in self._source.blocks(rows, list(dict.fromkeys(self._origin.get(name, name) for name in wanted))):
            yield DatedBlock(self.name, block, self._origin, self._dates)

    def _kind(self, name: str) -> Kind:
        return PARTS[name.removeprefix(f"{self._origin[name]} ")]


@final
@dataclass(frozen=True, eq=False)
class DatedBlock:
    """Rows of a `DatedSource`.

    Attributes:
        source: the table's name, for messages.
        block: the rows with their dates.
        origin: the column of each part.
        dates: the format and the parts of each column of dates.
    """

    source: str
    block: Block
    origin: Mapping[str, str]
    dates: Mapping[str, Sequence[str]]

    @property
    def rows(self) -> int:
        return self.block.rows

    def read(self, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
        """The columns named, parts of dates among them.

        Raises:
            InputError: if a cell is not a date of the format, nor an ISO date.
        """
        own = {name: kind for name, kind in kinds.items() if name not in self.origin}
        columns = self.block.read(own) if own else {}
        names = dict.fromkeys(self.origin[name] for name in kinds if name in self.origin)
        for name in names:
            parts = parts_of(self._times(name))
            columns |= {f"{name} {part}": values for part, values in parts.items()}
        return {name: self._as_asked(columns[name], kind) for name, kind in kinds.items()}

    def copied(self, names: Sequence[str]) -> pd.DataFrame:
        """Columns as they stand in the table, dates among them; parts as they are read."""
        parts = [name for name in names if name in self.origin]
        frame = self.block.copied([name for name in names if name not in self.origin])
        read = self.read({name: PARTS[name.removeprefix(f"{self.origin[name]} ")] for name in parts})
        return frame.assign(**read)[list(names)] if parts else frame

    def place(self, row: int) -> str:
        """Where a row stands in the table."""
        return self.block.place(row)

    def _times(self, name: str) -> pd.Series:
        cells = self.block.read({name: "categorical"})[name]
        times = parsed(cells, self.dates[name][0])
        # Spreadsheets and Parquet have dates of their own, which read as ISO dates whatever text looked like.
        iso = pd.Series([cell if cell is not None and LIKE_ISO.fullmatch(cell) else None for cell in cells])
        times = times.fillna(parsed(iso, ISO))
        strange = times.isna().to_numpy() & (cells != None)  # noqa: E711
        if strange.any():
            row = int(np.argmax(strange))
            raise InputError(
                f"{self.source}: {self.place(row)}, column {name!r}: expected {_example(self.dates[name][0])}, got "
                f"{cells[row]!r}. Correct the cell, or leave it empty where there is no date."
            )
        return times

    @staticmethod
    def _as_asked(values: np.ndarray, kind: Kind) -> np.ndarray:
        """Numbers as labels where the caller asks for labels."""
        if kind == "categorical" and values.dtype.kind == "f":
            return np.array([None if np.isnan(each) else f"{each:g}" for each in values], dtype=object)
        return values
