"""Which format a table's log has: the kinds of entries, and the words in them. One number, kept in the table.

It stands as `txn <pipeline>/format`, set by the first start of a headrace that knows the format, or by the first entry
that needs a newer one. A table without it has format 1. A kind, or a word without which an entry is misread, makes a
new format; others may be added freely. (docs/UPGRADES.md)
"""

from collections.abc import Mapping

from writer.errors import ConfigError

# Kinds of entries by the format that brought them.
KINDS: Mapping[int, tuple[str, ...]] = {
    1: ("start", "batch", "gap", "adopt", "replay", "side", "columns"),
    2: ("close", "seal", "rewrite", "take"),
    3: ("fill", "lost", "rewind"),
    4: ("accept",),
}
FORMAT = 3  # that a start gives a table
ANSWERED = 4  # that an entry gives a table which answers what another client did: `accept`, and `rewind` that undoes it
NEWEST = max(KINDS)
# Kinds that need no format: who does not know them passes over them, as they tell neither of rows nor of offsets.
PASSED_OVER = ("schema",)


class TooNew(ConfigError):
    """The table was written by a newer headrace, in a format that this one would misread."""


def format_of(transactions: Mapping[str, int], pipeline: str) -> int:
    """Return the format of a table's log."""
    return transactions.get(f"{pipeline}/format", 1)


def check_format(transactions: Mapping[str, int], pipeline: str, location: str) -> None:
    """Raise TooNew when this headrace must not write to the table."""
    found = format_of(transactions, pipeline)
    if found > NEWEST:
        raise TooNew(
            f"the log of the table at {location} has format {found}, this headrace knows formats up to {NEWEST}: "
            "a newer one wrote it. Run that one, or a newer one; there is no way back (docs/UPGRADES.md)."
        )
