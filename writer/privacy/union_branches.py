"""Names of the branches of unions, in paths and in the schemas of protected rows.

A path goes into a branch by a step such as `<com.shop.Card>`. What is left of a branch whose values become text has a
type of its own, so that a table never gives it the column of a branch whose values stand in the clear.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.writer.privacy.path_policies import Path

# Namespace of the types of protected values.
PROTECTED = "headrace.protected."
_WHOLE_UNION = "union"
_NUMBERS = ("int", "long", "float", "double")
_TEXTS = ("string", "bytes")
# Types that may share a column.
PROMOTED: Mapping[str, Sequence[str]] = dict.fromkeys(_NUMBERS, _NUMBERS) | dict.fromkeys(_TEXTS, _TEXTS)
_NUMBER_PAIRS = ({"int", "long"}, {"float", "double"})
# Those that a table has another type for than for plain numbers. Avro 1.12, "Logical Types"
_INSTANTS = dict.fromkeys(
    (
        "timestamp-millis",
        "timestamp-micros",
        "timestamp-nanos",
        "local-timestamp-millis",
        "local-timestamp-micros",
        "local-timestamp-nanos",
    ),
    "long",
)
_NO_NUMBERS = {"date": "int"} | _INSTANTS


def full_names(named: Mapping[str, Any]) -> list[str]:
    """Return the full names of a named type: its own, and its aliases, which are of its namespace if they name none."""
    name = str(named["name"])
    namespace, _, _ = name.rpartition(".")
    aliases = [str(alias) for alias in named.get("aliases", ())]
    return [name, *(alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in aliases)]


def branch_names(plain: Any) -> set[str]:
    """Return the names by which a table finds a branch's column: in full, aliases, and without the namespace."""
    if isinstance(plain, dict) and "name" in plain:
        names = {*full_names(plain)}
        return names | {name.rpartition(".")[2] for name in names}
    return {type_name(plain)}


def own_name(plain: Any) -> str:
    """Return the full name of a named type, else the name of the type."""
    if isinstance(plain, dict) and "name" in plain:
        return str(plain["name"])
    return type_name(plain)


def type_name(plain: Any) -> str:
    """Return the name of a type as Avro has it, such as `long` or `array`; empty for a union."""
    if isinstance(plain, dict):
        return str(plain["type"])
    if isinstance(plain, str):
        return plain
    return ""


def protected_text(plain: Any) -> dict[str, Any]:
    """Return the type of what is left of values once they are text.

    It is named after theirs, so a branch of a union is known by it. Types that may share a column have each other's
    names as aliases.
    """
    if isinstance(plain, dict) and "name" in plain:
        names = full_names(plain)
    else:
        own = type_name(plain) or _WHOLE_UNION
        names = [own, *(other for other in PROMOTED.get(own, ()) if other != own)]
    name, *aliases = [f"{PROTECTED}{branch_name}_text" for branch_name in names]
    return {"type": "enum", "name": name, "aliases": aliases, "symbols": ["_"]}


def is_protected_name(name: str) -> bool:
    """Return whether a type's name is that of protected values."""
    return name.startswith(PROTECTED)


def is_number_pair(plain: Sequence[Any]) -> bool:
    """Return whether a table has one column of numbers for two branches of a union, as for `[int, long]`."""
    names = {type_name(branch) for branch in plain}
    logical_types = [branch.get("logicalType") for branch in plain if isinstance(branch, dict)]
    return names in _NUMBER_PAIRS and not any(_NO_NUMBERS.get(logical or "") in names for logical in logical_types)


def is_complex(schema: Any) -> bool:
    """Return whether values of a type hold others."""
    return isinstance(schema, list) or (isinstance(schema, dict) and schema["type"] in ("record", "array", "map"))


def is_branch(step: str) -> bool:
    """Return whether a step of a path goes into a branch by its name."""
    return step.startswith("<")


def names_branch(path: Path) -> bool:
    """Return whether a path goes into a branch by its name."""
    return any(map(is_branch, path))


def group_by_fields(paths: Iterable[Path]) -> Mapping[Path, Sequence[Path]]:
    """Return paths by what they are without their steps into branches."""
    groups = dict[Path, list[Path]]()
    for path in paths:
        groups.setdefault(_fields(path), []).append(path)
    return groups


def wider_paths(path: Path, by_fields: Mapping[Path, Sequence[Path]]) -> Iterator[Path]:
    """Yield the paths that lead the same way through fewer unions, for a schema may have one branch in place of them.

    What the last step leads into is the same: a word of a whole field is no word of its branches.
    """
    for other in by_fields.get(_fields(path), ()):
        steps = iter(path)
        if len(other) < len(path) and other[-1:] == path[-1:] and all(step in steps for step in other):
            yield other


def _fields(path: Path) -> Path:
    return tuple(step for step in path if not is_branch(step))
