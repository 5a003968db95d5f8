"""What an engine cannot read, each a row of docs/ENGINES.md: the tests keep to it that it is still so, and said."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """A question, or a column's bounds (`bounds of <column>`), that an engine answers wrongly or not at all."""

    engine: str
    question: str
    said: str  # in docs/ENGINES.md
    format: str | None = None  # None: both

    def holds(self, engine: str, format_: str, question: str) -> bool:
        return (self.engine, self.question) == (engine, question) and self.format in (None, format_)


_PRESTO_NESTED = "A field added inside a struct: queries of that struct fail over older files"
_DRUID_BUCKETS = "The bucket columns are not there"

LIMITS = (
    Limit("trino", "bounds of ratio", "A float column widened to double: a predicate on it fails over older files"),
    Limit("presto", "nested fields", _PRESTO_NESTED, "delta"),
    Limit("presto", "a nested field added over older files", _PRESTO_NESTED, "delta"),
    Limit(
        "presto", "bounds of ratio", "A float column widened to double: a predicate on it fails over older files",
        "delta",
    ),
    *(Limit("druid", question, _DRUID_BUCKETS) for question in (
        "rows by bucket", "first and last event of a bucket", "one bucket by its values",
    )),
    Limit("druid", "decimals, one of them widened", "Decimals are texts"),
    Limit("druid", "bounds of big", "Decimals are texts"),
    Limit("druid", "bounds of name", "Texts are ordered by UTF-16 units"),
)  # fmt: skip
