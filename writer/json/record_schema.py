"""What record schemas of JSON values share, whether columns are declared or a JSON Schema gives them."""

import re
from collections.abc import Iterable
from typing import Any, Literal

Undeclared = Literal["rest", "drop", "dead_letter"]
Misfit = Literal["dead_letter", "null"]

# Attribute of a type: how its values stand in JSON, where Avro has no word for it.
ENCODING = "headrace.json"
# Column of members that no other column takes; longer where a member is called so.
REST = "rest"
_REST_NAME = re.compile("rest_*")
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


def is_rest_name(name: str) -> bool:
    """Return whether the column of members without a column may have this name."""
    return _REST_NAME.fullmatch(name) is not None


def rest_field(names: Iterable[str]) -> dict[str, Any]:
    """Return the field of an object for the members without a column. `names`: of its other fields."""
    lower_names = {name.lower() for name in names}
    name = REST
    while name in lower_names:
        name += "_"
    return nullable_field(name, {"type": "string", ENCODING: "rest"})


def nested_name(root: str, path: tuple[str, ...]) -> str:
    """Return the name of the record at a path, which no other path has: each step has its length before it."""
    if not path:
        return root
    steps = (f"{len(step)}_{_NO_WORD.sub(_code_point, step)}" for step in path)
    return f"{root}_{'_'.join(steps)}"


def _code_point(character: re.Match[str]) -> str:
    return f"x{ord(character[0]):x}"
