"""What an engine cannot read, each a row of docs/ENGINES.md: the tests keep to it that it is still so, and said."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """A question, or `bounds of <column>`, that an engine answers wrongly, or not at all, in some tables."""

    engine: str
    question: str
    said: str  # in docs/ENGINES.md
    tables: tuple[str, ...]

    def holds(self, engine: str, table: str, question: str) -> bool:
        return (self.engine, self.question) == (engine, question) and table in self.tables


_FLOAT = "A float column widened to double: a predicate on it fails over older files"
_PRESTO_NESTED = "A field of a struct that is null in some rows: queries fail without a filter"
_DRUID_BUCKETS = "The bucket columns are not there"

_BOTH, _ALL = ("delta", "parquet"), ("delta", "parquet", "rewritten")

_BY_BOUNDS = ("spark", "trino")

LIMITS = (
    Limit("spark", "bounds of fee", "A decimal widened: a predicate on it fails over older files", _BOTH),
    *(Limit(e, "bounds of big", "rounds the bounds of decimals beyond 15 digits", ("rewritten",)) for e in _BY_BOUNDS),
    Limit("trino", "bounds of ratio", _FLOAT, _BOTH),
    Limit("presto", "bounds of ratio", _FLOAT, _BOTH),
    Limit("presto", "nested fields", _PRESTO_NESTED, ("delta", "rewritten")),
    Limit("presto", "what is null", "`IS NULL` over a column that is null throughout a file", ("rewritten",)),
    Limit("druid", "rows by bucket", _DRUID_BUCKETS, _ALL),
    Limit("druid", "first and last event of a bucket", _DRUID_BUCKETS, _ALL),
    Limit("druid", "one bucket by its values", _DRUID_BUCKETS, _ALL),
    Limit("druid", "decimals, one of them widened", "Decimals are texts", _ALL),
    Limit("druid", "bounds of big", "Decimals are texts", _ALL),
    Limit("druid", "bounds of score", "NaN counts as greater than every number", _ALL),
    Limit("druid", "bounds of name", "Texts are ordered by UTF-16 units", _ALL),
)
