"""Parses the keys of rows to delete: columns and their values. Pure.

The keys are a condition, such as `user_id = 42` or `user_id IN (42, 43) AND country = 'DE'`, or a file of values.
Values are compared in the column's own type: 42, '42' and 42.0 are one user in a column of numbers, and three in one of
texts.
"""

import csv
import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field as member, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bucketers.arrow import column, has_text
from headrace.writer.batch.staging.parquet_files import value_bounds
from headrace.writer.core.errors import ConfigError
from headrace.writer.json.decimal_texts import read_decimal
from headrace.writer.privacy.hashing import hash_values

_NAME = r"[A-Za-z_][\w]*(?:\.[A-Za-z_][\w]*)*"
_VALUE = r"(?:'(?:[^']|'')*'|[-+]?[0-9][0-9.eE+-]*|true|false)"
_VALUE_LIST = rf"{_VALUE}(?:\s*,\s*{_VALUE})*"
_TERM = re.compile(rf"\s*({_NAME})\s*(?:=\s*({_VALUE})|in\s*\(\s*({_VALUE_LIST})\s*\))\s*", re.IGNORECASE)
_AND = re.compile(r"and\b", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"[-+]?\d+(?:\.0*)?")
_KINDS = "a text, a number, a boolean, a date or a timestamp"


@dataclass(frozen=True)
class RowMatch:
    """A column, dots into structs, and its values as text."""

    field: str
    # Values are personal data, so no message shows them.
    values: tuple[str, ...] = member(repr=False)
    # These texts stand for the values where the column is hashed.
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Keys:
    """Rows that fit all matches."""

    matches: tuple[RowMatch, ...]

    @property
    def fields(self) -> list[str]:
        """Names of the columns."""
        return [match.field for match in self.matches]

    @property
    def columns(self) -> list[str]:
        """Names of the top-level columns."""
        return list(dict.fromkeys(name.partition(".")[0] for name in self.fields))

    @property
    def count(self) -> int:
        """How many values there are in all."""
        return sum(len(match.values) for match in self.matches)


def where(text: str) -> Keys:
    """Read a condition. Raises ConfigError, without the values in it."""
    matches: list[RowMatch] = []
    position = 0
    while (term := _TERM.match(text, position)) is not None:
        name, value, value_list = term.groups()
        values = re.findall(_VALUE, value_list or value, re.IGNORECASE)
        matches.append(RowMatch(name, tuple(map(_unquote, values))))
        position = term.end()
        if position == len(text):
            return Keys(tuple(matches))
        conjunction = _AND.match(text, position)
        if conjunction is None:
            break
        position = conjunction.end()
    raise ConfigError(
        f"--where is not understood from its character {position + 1} on. Write column = value, or column IN (value, "
        "value), joined by AND; texts in single quotes, dots into structs."
    )


def read_keys(path: Path, name: str, title: str | None = None) -> Keys:
    """Read the values of a column from a CSV file with a head. Raises ConfigError."""
    title = title or name
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if title not in (rows.fieldnames or ()):
                names = ", ".join(rows.fieldnames or ()) or "none"
                raise ConfigError(f"{path} has no column {title!r}; its columns are {names}")
            values = dict.fromkeys(row[title] for row in rows if row[title])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not values:
        raise ConfigError(f"{path} has no value in its column {title!r}")
    return Keys((RowMatch(name, tuple(values)),))


def with_hashes(keys: Keys, columns: pa.Schema, secrets: Collection[bytes]) -> Keys:
    """Return keys that find rows, too, whose text columns hold hashes of the values by one of these secrets."""
    empty = columns.empty_table()

    def add_hashes(match: RowMatch) -> RowMatch:
        if not pa.types.is_string(_kind(empty, match.field)):
            return match
        values = pa.array(match.values, pa.string()).cast(pa.binary())
        hashes = chain.from_iterable(hash_values(values, secret).to_pylist() for secret in secrets)
        return replace(match, hashes=tuple(hashes))

    return Keys(tuple(map(add_hashes, keys.matches)))


class RowFinder:
    """Finds the rows that fit keys, in columns of these types."""

    def __init__(self, keys: Keys, columns: pa.Schema) -> None:
        """Raises ConfigError for a column that is not there, or cannot have such values."""
        empty = columns.empty_table()
        self._values = [(match.field, _convert_values(match, _kind(empty, match.field))) for match in keys.matches]
        self._sorted_values = [(name, sorted(values.to_pylist())) for name, values in self._values]

    def match_rows(self, rows: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Return for each row whether it fits. A column that a file lacks is null there, so no row of it fits."""
        table = rows
        if isinstance(rows, pa.RecordBatch):
            table = pa.Table.from_batches([rows])
        mask = np.ones(table.num_rows, bool)
        for name, values in self._values:
            try:
                cells = column(table, name)
            except ValueError:
                return np.zeros(table.num_rows, bool)
            is_equal = pc.is_in(cells.cast(values.type), value_set=values)
            mask &= is_equal.to_numpy(zero_copy_only=False)
        return mask

    def row_groups(self, metadata: pq.FileMetaData) -> list[int]:
        """Return the numbers of a file's row groups that may hold such rows, by their statistics."""
        indexes = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}

        def may_hold_rows(group: int) -> bool:
            statistics = metadata.row_group(group)
            return all(_may_hold(statistics, indexes.get(name), values) for name, values in self._sorted_values)

        return list(filter(may_hold_rows, range(metadata.num_row_groups)))


def _convert_values(match: RowMatch, kind: pa.DataType) -> pa.Array:
    """Return the values with the column's type. Raises ConfigError, without the values in it."""
    texts = [*match.values, *match.hashes]
    if pa.types.is_integer(kind):
        texts = list(map(_without_fraction, match.values))
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise ConfigError(f"column {match.field!r} is {kind}; rows are found by {_KINDS}")
    try:
        if pa.types.is_decimal(kind):
            return _convert_decimals(texts, kind)
        return pa.array(texts, pa.string()).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"column {match.field!r} is {kind}: one of the values is none") from error


def _convert_decimals(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    """Return decimals of texts. Raises ValueError. Arrow's cast takes `1e-77` for 0."""
    numbers = [read_decimal(text, kind.precision, kind.scale) for text in texts]
    if None in numbers:
        raise ValueError(f"a text is no {kind}")
    return pa.array(numbers, kind)


def _kind(rows: pa.Table, name: str) -> pa.DataType:
    try:
        return column(rows, name, has_text).type
    except ValueError as error:
        raise ConfigError(str(error).replace("the record", "the table")) from error


def _without_fraction(value: str) -> str:
    """Return `42` for `42.0`, and any text that is no whole number as it is."""
    if _WHOLE_NUMBER.fullmatch(value):
        return value.partition(".")[0]
    return value


def _unquote(value: str) -> str:
    if value.startswith("'"):
        return value[1:-1].replace("''", "'")
    return value


def _may_hold(group: Any, index: int | None, values: Sequence[Any]) -> bool:
    """Return whether a row group may hold one of the values, which are in order. False where it lacks the column."""
    if index is None:
        return False
    bounds = value_bounds([group.column(index).statistics])
    if bounds is None:
        return True
    least, greatest = bounds
    try:
        index_of_least = bisect_left(values, least)
        return index_of_least < len(values) and bool(values[index_of_least] <= greatest)
    except TypeError:
        # A file from before the column was widened has statistics of another type than the column's.
        return True
