"""Creates a bucketer from the configuration. Only this module imports code by name."""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any, Final

from bucketers.arrow import fix
from bucketers.base import Bucketer
from bucketers.composite import Composite
from bucketers.event_time import EventTime
from bucketers.field import Field

TYPES: Final[Mapping[str, Callable[..., Bucketer]]] = {
    "event_time": EventTime,
    "field": Field,
    "composite": lambda parts: Composite(*map(build, parts)),
}


def build(spec: Mapping[str, Any]) -> Bucketer:
    """The bucketer of `{"type": ..., **options}`; a type with a colon, `my_module:MyClass`, is imported.

    Raises ValueError for an unknown type or option, one that its class refuses, or a class that is no bucketer.
    """
    try:
        options = dict(spec)
        kind = str(options.pop("type"))
    except (KeyError, TypeError, ValueError) as error:
        known = ", ".join(TYPES)
        raise ValueError(
            f"bucketer {spec!r} has no 'type'; set it to one of {known}, or 'my_module:MyClass'"
        ) from error
    make = _imported(kind) if ":" in kind else TYPES.get(kind)
    if make is None:
        raise ValueError(f"bucketer type {kind!r} is neither 'my_module:MyClass' nor known; {fix(kind, TYPES)}")
    call = signature(make)
    try:
        call.bind(**options)
    except TypeError as error:
        raise ValueError(
            f"bucketer {kind!r}: {error}; its options are {', '.join(call.parameters) or 'none'}"
        ) from error
    try:
        made = make(**options)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"bucketer {kind!r} cannot be made of {options}: {error}; check their types") from error
    columns = getattr(made, "columns", None)
    if not (isinstance(columns, tuple) and columns and all(isinstance(name, str) for name in columns)):
        raise ValueError(f"bucketer {kind!r} has columns {columns!r}; make it a tuple of at least one name")
    if not callable(getattr(made, "assign", None)):
        raise ValueError(f"bucketer {kind!r} has no method 'assign'; write it as in bucketers.Bucketer")  # noqa: TRY004
    return made


def _imported(kind: str) -> Callable[..., Bucketer]:
    name, _, class_name = kind.partition(":")
    try:
        module = import_module(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"bucketer {kind!r}: {error}; install the module where the writer runs") from error
    make: Callable[..., Bucketer] | None = getattr(module, class_name, None)
    if not callable(make):
        classes = (known for known, value in vars(module).items() if isinstance(value, type))
        raise ValueError(  # noqa: TRY004
            f"bucketer {kind!r}: {name} has no class {class_name!r}; {fix(class_name, classes)}"
        )
    return make
