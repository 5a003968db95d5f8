"""What record schemas of JSON values share, whether columns are declared or a JSON Schema gives them."""

import re
from typing import Any, Literal

Undeclared = Literal["rest", "drop", "dead_letter"]
Misfit = Literal["dead_letter", "null"]

# Attribute of a type: how its values stand in JSON, where Avro has no word for it.
ENCODING = "headrace.json"
# Columns of members that no other column takes; the second where a member is called as the first.
REST = "rest"
_REST_BESIDE = "rest_"
REST_NAMES = frozenset((REST, _REST_BESIDE))
_NO_WORD = re.compile("[^A-Za-z0-9]")


def has_rest(undeclared: Undeclared, misfit: Misfit) -> bool:
    """Return whether objects have a column for members that no other column takes."""
    return undeclared == "rest" or misfit == "null"


def root_attributes(undeclared: Undeclared, misfit: Misfit) -> dict[str, str]:
    """Return the attributes of the root of a record schema of JSON values."""
    return {"headrace.format": "json", "headrace.undeclared": undeclared, "headrace.misfit": misfit}


def nullable_field(name: str, kind: Any) -> dict[str, Any]:
    """Return a field of a record: members of JSON may always be missing."""
    return {"name": name, "type": ["null", kind], "default": None}


def rest_field(names: set[str]) -> dict[str, Any]:
    """Return the field of an object for the members without a column. `names`: of the others. Raises ValueError."""
    name = _REST_BESIDE if REST in names else REST
    if name in names:
        raise ValueError(f"members are called {REST!r} and {name!r}, which leaves no name for the others")
    return nullable_field(name, {"type": "string", ENCODING: "rest"})


def nested_name(root: str, path: tuple[str, ...]) -> str:
    """Return the name of the record at a path, which no other path has: each step has its length before it."""
    if not path:
        return root
    steps = (f"{len(step)}_{_NO_WORD.sub(_code_point, step)}" for step in path)
    return f"{root}_{'_'.join(steps)}"


def _code_point(character: re.Match[str]) -> str:
    return f"x{ord(character[0]):x}"
