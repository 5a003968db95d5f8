"""Parses the keys of rows to delete: columns and their values. Pure.

`user_id = 42`, `user_id IN (42, 43) AND country = 'DE'`, or a file of values. What it is compared with is the column's
own type, so 42, '42' and 42.0 are one user where the column is a number, and three where it is text.
"""

import csv
import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field as member, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bucketers.arrow import column, has_text
from writer.batch.staging.parquet_files import value_bounds
from writer.core.errors import ConfigError
from writer.privacy.hashing import hash_values

_NAME = r"[A-Za-z_][\w]*(?:\.[A-Za-z_][\w]*)*"
_VALUE = r"(?:'(?:[^']|'')*'|[-+]?[0-9][0-9.eE+-]*|true|false)"
_SEVERAL = rf"{_VALUE}(?:\s*,\s*{_VALUE})*"
_TERM = re.compile(rf"\s*({_NAME})\s*(?:=\s*({_VALUE})|in\s*\(\s*({_SEVERAL})\s*\))\s*", re.IGNORECASE)
_AND = re.compile(r"and\b", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"[-+]?\d+(?:\.0*)?")
_KINDS = "a text, a number, a boolean, a date or a timestamp"


@dataclass(frozen=True)
class RowMatch:
    """A column, dots into structs, and its values as text."""

    field: str
    values: tuple[str, ...] = member(repr=False)  # they are about people
    hashes: tuple[str, ...] = ()  # what stands for them where the column is hashed


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
        name, value, several = term.groups()
        values = [value] if value is not None else re.findall(_VALUE, several, re.IGNORECASE)
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


def from_file(path: Path, name: str, title: str | None = None) -> Keys:
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
        return replace(match, hashes=tuple(one for key in secrets for one in hash_values(values, key).to_pylist()))

    return Keys(tuple(map(add_hashes, keys.matches)))


class Finder:
    """Tells which rows are meant, for columns of these types."""

    def __init__(self, keys: Keys, columns: pa.Schema) -> None:
        """Raises ConfigError for a column that is not there, or cannot have such values."""
        empty = columns.empty_table()
        self._wanted = [(m.field, typed(m, _kind(empty, m.field))) for m in keys.matches]
        self._sorted = [(name, sorted(v.to_pylist())) for name, v in self._wanted]

    def among(self, rows: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Return for each row whether it is meant. A column that a file lacks is null there, so it has no such row."""
        table = pa.table(rows) if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        found = np.ones(table.num_rows, bool)
        for name, values in self._wanted:
            try:
                held = column(table, name)
            except ValueError:
                return np.zeros(table.num_rows, bool)
            mine = pc.is_in(held.cast(values.type), value_set=values)
            found &= mine.to_numpy(zero_copy_only=False)
        return found

    def groups(self, metadata: pq.FileMetaData) -> list[int]:
        """Return the row groups of a file that may hold such rows, by their statistics."""
        names = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        return [
            g for g in range(metadata.num_row_groups)
            if all(_may_hold(metadata.row_group(g), names.get(name), values) for name, values in self._sorted)
        ]  # fmt: skip


def typed(match: RowMatch, kind: pa.DataType) -> pa.Array:
    """Return the values with the column's type. Raises ConfigError, without the values in it."""
    texts = [v.partition(".")[0] if _WHOLE_NUMBER.fullmatch(v) else v for v in match.values] if (
        pa.types.is_integer(kind)
    ) else [*match.values, *match.hashes]  # fmt: skip
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise ConfigError(f"column {match.field!r} is {kind}; rows are found by {_KINDS}")
    try:
        return pa.array(texts, pa.string()).cast(kind)
    except pa.ArrowException as error:
        raise ConfigError(f"column {match.field!r} is {kind}: one of the values is none") from error


def _kind(rows: pa.Table, name: str) -> pa.DataType:
    try:
        return column(rows, name, has_text).type
    except ValueError as error:
        raise ConfigError(str(error).replace("the record", "the table")) from error


def _unquote(value: str) -> str:
    return value[1:-1].replace("''", "'") if value.startswith("'") else value


def _may_hold(group: Any, index: int | None, values: Sequence[Any]) -> bool:
    """Return whether a row group may hold one of the values, which are in order. False where it lacks the column."""
    if index is None:
        return False
    bounds = value_bounds([group.column(index).statistics])
    if bounds is None:
        return True
    least, greatest = bounds
    try:
        at = bisect_left(values, least)
        return at < len(values) and bool(values[at] <= greatest)
    except TypeError:  # statistics of another type than the column's, in a file from before it was widened
        return True
