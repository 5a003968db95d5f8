"""What one event spec says, as tasks get it, and the specs of a pipeline with their fingerprint."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from hashlib import sha256
from typing import Any

Path = tuple[str, ...]


class SpecError(ValueError):
    """A spec that cannot be applied to the columns of a record type. Its message names the key and the fix."""


@dataclass(frozen=True)
class Sample:
    """A share of the records, by a hash of one column: all records with the same value stay, or none does."""

    # 0 < share <= 1
    share: Fraction
    # A dotted path.
    by: str


@dataclass(frozen=True)
class Spec:
    """What becomes of the records of one type, or of the types that a pattern matches."""

    # Full name of a record, or a pattern with *, ? and […].
    name: str
    # SQL; records for which it is not true are left out.
    where: str = ""
    sample: Sample | None = None
    # Dotted paths; empty: all columns.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    # Column → its name in the table.
    rename: tuple[tuple[str, str], ...] = ()
    # Column → name of a type.
    cast: tuple[tuple[str, str], ...] = ()
    # Columns whose nested fields become columns.
    flatten: tuple[str, ...] = ()
    flatten_all: bool = False
    # Column → SQL.
    derive: tuple[tuple[str, str], ...] = ()
    # To find whose records are: none is left out, and what fails on one gives null.
    forgives: bool = False

    def matches(self, record: str) -> bool:
        """Return whether it is the spec of a record, by the full name of this."""
        return fnmatchcase(record, self.name)

    def makes(self, column: str) -> bool:
        """Return whether it, and not the record, says what a column of the table holds."""
        return column in dict(self.derive) or column in dict(self.rename).values()

    def sources(self, column: Path, fields: Iterable[Path]) -> list[Path]:
        """Return the paths of the record, of some fields, that a column of the table holds, or a field inside it.

        None of a derived column, which is what an expression makes of them.
        """
        name, *inner_steps = column
        if name in dict(self.derive):
            return []
        source_names = {table_name: source_name for source_name, table_name in self.rename}
        flat_paths = [path for path in fields if len(path) > 1 and self._flat_name(path) == name]
        return [
            (source_names.get(name, name), *inner_steps),
            *((*path, *inner_steps) for path in flat_paths),
        ]

    def _flat_name(self, path: Path) -> str | None:
        """Return the column that a field inside a record becomes; None where the record is not flattened."""
        if not self.flatten_all and path[0] not in self.flatten:
            return None
        return "_".join((dict(self.rename).get(path[0], path[0]), *path[1:]))

    def to_json(self) -> dict[str, Any]:
        """Write what it says as JSON values, without what it does not say."""
        document = {key: value for key, value in asdict(self).items() if value and key != "name"}
        document |= {key: dict(document[key]) for key in ("rename", "cast", "derive") if key in document}
        if self.sample is not None:
            document["sample"] = {"share": str(self.sample.share), "by": self.sample.by}
        return document


def spec_of(specs: Sequence[Spec], record: str | None) -> Spec | None:
    """Return the spec of a record: one with its name, else the first whose pattern matches it."""
    if record is None:
        return None
    by_name = next((spec for spec in specs if spec.name == record), None)
    return by_name or next((spec for spec in specs if spec.matches(record)), None)


def to_json(specs: Sequence[Spec]) -> dict[str, Any]:
    """Write specs as JSON values, in the order that counts."""
    return {spec.name: spec.to_json() for spec in specs}


def fingerprint(specs: Mapping[str, Any]) -> int:
    """Return 63 bits of the SHA-256 of specs as `to_json` writes them; 0: there are none."""
    if not specs:
        return 0
    text = json.dumps(specs, separators=(",", ":"), ensure_ascii=False)
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1
