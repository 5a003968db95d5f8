"""How each engine says what all of them can: paths, lists, maps, instants, literals."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.engines.events import micros

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Dialect:
    """Trino's words; the others differ in some."""

    table: str
    name: str = "trino"

    def kept(self, when: datetime) -> int:
        """Microseconds since 1970 that the engine keeps of an instant."""
        return micros(when)

    def column(self, name: str) -> str:
        return name

    def micros(self, function: str, column: str) -> str:
        """An aggregate of a timestamp, in microseconds since 1970."""
        return f"CAST(round(to_unixtime({function}({column})) * 1e6) AS bigint)"

    def literal(self, value: Any) -> str:
        match value:
            case datetime():
                return f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S.%f} UTC'"
            case date():
                return f"DATE '{value.isoformat()}'"
            case Decimal():
                return f"CAST('{value:f}' AS decimal(38, {-int(value.as_tuple().exponent)}))"
            case str():
                return "'" + value.replace("'", "''") + "'"
            case float():
                return f"CAST('{value!r}' AS double)"
        return f"CAST('{value}' AS bigint)"

    def bound(self, column: str, value: Any) -> str:  # noqa: ARG002 - Druid's dates are numbers
        """A literal that a column is compared with."""
        return self.literal(value)

    def text(self, expression: str) -> str:
        return f"CAST({expression} AS varchar)"

    def whole(self, function: str, column: str) -> str:
        """An aggregate of longs that may exceed them."""
        return self.text(f"{function}(CAST({column} AS decimal(38, 0)))")

    def isnan(self, expression: str) -> str:
        return f"is_nan({expression})"

    def isinf(self, expression: str) -> str:
        return f"is_infinite({expression})"

    def flag(self, column: str) -> str:
        """A boolean."""
        return column

    def path(self, path: str, kind: str = "varchar") -> str:  # noqa: ARG002 - Druid must be told
        return path

    def size(self, column: str) -> str:
        return f"cardinality({column})"

    def map_size(self, column: str) -> str:
        return self.size(column)

    def has(self, column: str, value: str) -> str:
        return f"contains({column}, {self.literal(value)})"

    def first(self, column: str, field: str) -> str:
        """A field of a list's first record, null where there is none."""
        return f"element_at({column}, 1).{field}"

    def entry(self, column: str, key: str) -> str:
        return f"element_at({column}, '{key}')"


class Trino(Dialect):
    """Its Delta connector rounds timestamps to milliseconds."""

    def kept(self, when: datetime) -> int:
        return (micros(when) + 500) // 1000 * 1000

    def literal(self, value: Any) -> str:
        if isinstance(value, datetime):
            return super().literal(_EPOCH + timedelta(microseconds=self.kept(value)))
        return super().literal(value)


class TrinoHive(Dialect):
    """Its Hive connector has timestamps without zone, in UTC, to the microsecond when it is told so."""

    def micros(self, function: str, column: str) -> str:
        return super().micros(function, f"with_timezone({column}, 'UTC')")

    def literal(self, value: Any) -> str:
        if isinstance(value, datetime):
            return f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S.%f}'"
        return super().literal(value)


class Presto(Dialect):
    """Timestamps of milliseconds."""

    def kept(self, when: datetime) -> int:
        return micros(when) // 1000 * 1000

    def literal(self, value: Any) -> str:
        if isinstance(value, datetime):
            return f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}'"
        return super().literal(value)


class Spark(Dialect):
    def micros(self, function: str, column: str) -> str:
        return f"unix_micros({function}({column}))"

    def literal(self, value: Any) -> str:
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return super().literal(value)

    def text(self, expression: str) -> str:
        return f"CAST({expression} AS string)"

    def isnan(self, expression: str) -> str:
        return f"isnan({expression})"

    def isinf(self, expression: str) -> str:
        return f"(abs({expression}) = double('inf') AND NOT isnan({expression}))"

    def has(self, column: str, value: str) -> str:
        return f"array_contains({column}, {self.literal(value)})"

    def first(self, column: str, field: str) -> str:
        return f"get({column}, 0).{field}"


class DuckDB(Dialect):
    def micros(self, function: str, column: str) -> str:
        return f"epoch_us({function}({column}))"

    def literal(self, value: Any) -> str:
        if isinstance(value, datetime):
            return f"TIMESTAMPTZ '{value:%Y-%m-%d %H:%M:%S.%f}+00'"
        return super().literal(value)

    def isnan(self, expression: str) -> str:
        return f"isnan({expression})"

    def isinf(self, expression: str) -> str:
        return f"isinf({expression})"

    def size(self, column: str) -> str:
        return f"len({column})"

    def map_size(self, column: str) -> str:
        return f"cardinality({column})"

    def first(self, column: str, field: str) -> str:
        return f"{column}[1].{field}"

    def entry(self, column: str, key: str) -> str:
        return f"{column}['{key}']"


class Druid(Dialect):
    """The time column in milliseconds; other timestamps are numbers of milliseconds, decimals texts, records JSON."""

    def kept(self, when: datetime) -> int:
        return micros(when) // 1000 * 1000

    def column(self, name: str) -> str:
        match name:
            case "event_time":
                return "__time"
            case "fee" | "price" | "big":
                return f"CAST({name} AS double)"
        return f'"{name}"'

    def micros(self, function: str, column: str) -> str:
        name = self.column(column)
        return f"{function}({f'TIMESTAMP_TO_MILLIS({name})' if name == '__time' else name}) * 1000"

    def literal(self, value: Any) -> str:
        match value:
            case datetime():
                return f"MILLIS_TO_TIMESTAMP({self.kept(value) // 1000})"
            case Decimal():
                return f"CAST('{value:f}' AS double)"
            case date():
                return super().literal(value)
            case str() if not value.isascii() or not value.isprintable() or "\\" in value:
                units = value.encode("utf-16-be").hex()
                return "U&'" + "".join(f"\\{units[i : i + 4]}" for i in range(0, len(units), 4)) + "'"
        return super().literal(value)

    def bound(self, column: str, value: Any) -> str:
        if column == "created":
            return str(self.kept(value) // 1000)
        if column == "day":
            return str((value - _EPOCH.date()).days * 86_400_000)
        return self.literal(value)

    def flag(self, column: str) -> str:
        return f"CASE {column} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"

    def whole(self, function: str, column: str) -> str:
        return f"CAST({function}({column}) AS varchar)"

    def text(self, expression: str) -> str:
        """A date is a number of milliseconds, a decimal a text: it is added up as a double."""
        function, _, column = expression.removesuffix(")").partition("(")
        if column == "day":
            return f"TIME_FORMAT(MILLIS_TO_TIMESTAMP({function}(\"day\")), 'yyyy-MM-dd')"
        return f"{function}({self.column(column)})"

    def isnan(self, expression: str) -> str:
        return f"CAST({expression} AS varchar) = 'NaN'"

    def isinf(self, expression: str) -> str:
        return f"CAST({expression} AS varchar) IN ('Infinity', '-Infinity')"

    def path(self, path: str, kind: str = "varchar") -> str:
        column, _, rest = path.partition(".")
        return f"JSON_VALUE({column}, '$.{rest}' RETURNING {kind})"

    def size(self, column: str) -> str:
        return f"COALESCE(ARRAY_LENGTH({column}), 0)"

    def map_size(self, column: str) -> str:
        return f"COALESCE(ARRAY_LENGTH(JSON_KEYS({column}, '$.')), 0)"

    def has(self, column: str, value: str) -> str:
        return f"ARRAY_CONTAINS({column}, {self.literal(value)})"

    def first(self, column: str, field: str) -> str:
        return f"JSON_VALUE({column}, '$[0].{field}' RETURNING double)"

    def entry(self, column: str, key: str) -> str:
        return f"JSON_VALUE({column}, '$.{key}' RETURNING bigint)"
