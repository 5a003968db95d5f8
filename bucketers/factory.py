"""Creates a bucketer from the configuration. Only this module imports code by name."""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any, Final

from headrace.bucketers.arrow import suggest_name
from headrace.bucketers.base import Bucketer
from headrace.bucketers.composite import Composite
from headrace.bucketers.event_time import EventTime
from headrace.bucketers.field import Field

TYPES: Final[Mapping[str, Callable[..., Bucketer]]] = {
    "event_time": EventTime,
    "field": Field,
    "composite": lambda parts: Composite(*map(build, parts)),
}


def build(spec: Mapping[str, Any]) -> Bucketer:
    """Return the bucketer of `{"type": ..., **options}`; a type with a colon, `my_module:MyClass`, is imported.

    Raises ValueError for an unknown type or option, one that its class refuses, or a class that is no bucketer.
    """
    try:
        options = dict(spec)
        kind = str(options.pop("type"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"bucketer {spec!r} has no 'type'; set it to one of {', '.join(TYPES)}, or 'my_module:MyClass'"
        ) from error
    make = _bucketer_class(kind)
    parameters = signature(make)
    try:
        parameters.bind(**options)
    except TypeError as error:
        raise ValueError(
            f"bucketer {kind!r}: {error}; its options are {', '.join(parameters.parameters) or 'none'}"
        ) from error
    try:
        bucketer = make(**options)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"bucketer {kind!r} cannot be made of {options}: {error}; check their types") from error
    _check_protocol(kind, bucketer)
    return bucketer


def _check_protocol(kind: str, bucketer: object) -> None:
    """Raise ValueError for an object that lacks a part of the protocol."""
    columns = getattr(bucketer, "columns", None)
    if not (isinstance(columns, tuple) and columns and all(isinstance(name, str) for name in columns)):
        raise ValueError(f"bucketer {kind!r} has columns {columns!r}; make it a tuple of at least one name")
    if not callable(getattr(bucketer, "assign", None)):
        raise ValueError(f"bucketer {kind!r} has no method 'assign'; write it as in bucketers.Bucketer")  # noqa: TRY004


def _bucketer_class(kind: str) -> Callable[..., Bucketer]:
    """Return what makes bucketers of a type. Raises ValueError for an unknown type."""
    if ":" in kind:
        return _import_class(kind)
    if kind not in TYPES:
        raise ValueError(
            f"bucketer type {kind!r} is neither 'my_module:MyClass' nor known; {suggest_name(kind, TYPES)}"
        )
    return TYPES[kind]


def _import_class(kind: str) -> Callable[..., Bucketer]:
    name, _, class_name = kind.partition(":")
    try:
        module = import_module(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"bucketer {kind!r}: {error}; install the module where the writer runs") from error
    make: Callable[..., Bucketer] | None = getattr(module, class_name, None)
    if not callable(make):
        classes = [member for member, value in vars(module).items() if isinstance(value, type)]
        raise ValueError(  # noqa: TRY004
            f"bucketer {kind!r}: {name} has no class {class_name!r}; {suggest_name(class_name, classes)}"
        )
    return make
