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

    share: Fraction  # 0 < share <= 1
    by: str  # dotted


@dataclass(frozen=True)
class Spec:
    """What becomes of the records of one type, or of the types that a pattern matches."""

    name: str  # full name of a record, or a pattern with *, ? and […]
    where: str = ""  # SQL; records for which it is not true are left out
    sample: Sample | None = None
    include: tuple[str, ...] = ()  # dotted; empty: all columns
    exclude: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()  # column → its name in the table
    cast: tuple[tuple[str, str], ...] = ()  # column → name of a type
    flatten: tuple[str, ...] = ()  # columns whose nested fields become columns
    flatten_all: bool = False
    derive: tuple[tuple[str, str], ...] = ()  # column → SQL
    forgives: bool = False  # to find whose records are: none is left out, and what fails on one gives null

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
        if column[0] in dict(self.derive):
            return []
        names = dict(self.rename)
        former = {name: field for field, name in names.items()}
        flat = [
            path for path in fields
            if len(path) > 1 and (self.flatten_all or path[0] in self.flatten)
            and "_".join((names.get(path[0], path[0]), *path[1:])) == column[0]
        ]  # fmt: skip
        return [(former.get(column[0], column[0]), *column[1:]), *((*path, *column[1:]) for path in flat)]

    def to_json(self) -> dict[str, Any]:
        """Write what it says as JSON values, without what it does not say."""
        found = {key: value for key, value in asdict(self).items() if value and key != "name"}
        found |= {key: dict(found[key]) for key in ("rename", "cast", "derive") if key in found}
        if self.sample is not None:
            found["sample"] = {"share": str(self.sample.share), "by": self.sample.by}
        return found


def spec_of(specs: Sequence[Spec], record: str | None) -> Spec | None:
    """Return the spec of a record: one with its name, else the first whose pattern matches it."""
    if record is None:
        return None
    named = next((spec for spec in specs if spec.name == record), None)
    return named or next((spec for spec in specs if spec.matches(record)), None)


def to_json(specs: Sequence[Spec]) -> dict[str, Any]:
    """Write specs as JSON values, in the order that counts."""
    return {spec.name: spec.to_json() for spec in specs}


def fingerprint(specs: Mapping[str, Any]) -> int:
    """Return 63 bits of the SHA-256 of specs as `to_json` writes them; 0: there are none."""
    if not specs:
        return 0
    text = json.dumps(specs, separators=(",", ":"), ensure_ascii=False)
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1
