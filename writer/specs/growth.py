"""Bounds what a function of an expression may make of one record, where its size is none of its arguments' sizes.

`lpad`, `rpad` and `repeat` make as much as a number says; `replace`, `regexp_replace` and `array_to_string` multiply
texts. Each such call is rewritten so that it asks a guard first, which fails on the record that would exceed BYTES_MAX:
before the memory is asked for, and only where the call is reached. A number goes through its guard, so that no constant
is evaluated where there is no record.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from writer.specs.spec import SpecError

BYTES_MAX = 99_999  # that one call may make of one record, or add to it
GUARD = "within_bound"
COUNT_GUARD = "bounded_count"
GUARDS = frozenset((GUARD, COUNT_GUARD))
_SQL_MAX = 20_000  # characters of an expression that is rewritten: each call repeats its arguments
_SHORT = 8  # characters of a text in an expression that may be put in without a look
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][A-Za-z0-9_]*|\s+|--[^\n]*|/\*.*?\*/|.""",
    re.DOTALL,
)
_NUMBER = re.compile(r"\d{1,5}")
_TEXT = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True)
class _Growing:
    """A function that may make much. `argument`: position of the one that is guarded."""

    argument: int
    size: Callable[[Sequence[str]], tuple[str, str]]  # SQL of how many pieces it makes, and of bytes in each
    is_small: Callable[[Sequence[str]], bool]  # whether its arguments, as they are written, make little
    is_count: bool = False  # the argument is a number; a negative one counts as 0


def _of_length(arguments: Sequence[str]) -> tuple[str, str]:
    return arguments[1], "1"


def _of_repeat(arguments: Sequence[str]) -> tuple[str, str]:
    return arguments[1], f"octet_length({arguments[0]})"


def _of_replace(arguments: Sequence[str]) -> tuple[str, str]:
    text, pattern, new = arguments[:3]
    lost = f"(octet_length({text}) - octet_length(replace({text}, {pattern}, '')))"
    size = f"octet_length({pattern})"
    count = f"CASE WHEN {size} = 0 THEN octet_length({text}) + 1 ELSE {lost} / {size} END"
    return count, f"octet_length({new})"


def _of_regexp_replace(arguments: Sequence[str]) -> tuple[str, str]:
    text, pattern, new = arguments[:3]
    has_groups = f"strpos({new}, '\\') + strpos({new}, '$') > 0"
    each = f"octet_length({new}) * CASE WHEN {has_groups} THEN octet_length({text}) + 1 ELSE 1 END"
    return f"regexp_count({text}, {pattern}) + 1", each


def _of_array_to_string(arguments: Sequence[str]) -> tuple[str, str]:
    return f"cardinality({arguments[0]})", f"octet_length({arguments[1]})"


def _has_short_length(arguments: Sequence[str]) -> bool:
    return len(arguments) > 1 and _NUMBER.fullmatch(arguments[1].strip()) is not None


def _never(_: Sequence[str]) -> bool:
    return False


def _adds_nothing(arguments: Sequence[str]) -> bool:
    pattern, new = (_TEXT.fullmatch(argument.strip()) for argument in arguments[1:3])
    return pattern is not None and new is not None and max(len(new[1]), 1) <= len(pattern[1])


def _puts_short_text(at: int) -> Callable[[Sequence[str]], bool]:
    def puts_short_text(arguments: Sequence[str]) -> bool:
        text = _TEXT.fullmatch(arguments[at].strip()) if len(arguments) > at else None
        return text is not None and len(text[1]) <= _SHORT and not set(text[1]) & set("\\$")

    return puts_short_text


_JOIN = _Growing(1, _of_array_to_string, _puts_short_text(1))
GROWING: Mapping[str, _Growing] = {
    "lpad": _Growing(1, _of_length, _has_short_length, is_count=True),
    "rpad": _Growing(1, _of_length, _has_short_length, is_count=True),
    "repeat": _Growing(1, _of_repeat, _never, is_count=True),
    "replace": _Growing(2, _of_replace, _adds_nothing),
    "regexp_replace": _Growing(2, _of_regexp_replace, _puts_short_text(2)),
    "array_to_string": _JOIN, "array_join": _JOIN, "list_to_string": _JOIN, "list_join": _JOIN,
}  # fmt: skip


def guard_calls(sql: str) -> str:
    """Return an expression whose growing calls ask `within_bound` first. Raises SpecError for one that grows too long.

    What is no SQL stays what it is, for DataFusion to refuse.
    """
    found = (match[0] for match in _TOKEN.finditer(sql))
    tokens = [" " if token.startswith(("--", "/*")) else token for token in found]
    if own := GUARDS & {token.strip('"').lower() for token in tokens}:
        raise SpecError(f"{', '.join(own)} is a function of headrace's own; take it out")
    if not any(token.lower() in GROWING for token in tokens):
        return sql
    guarded = "".join(_guarded(tokens))
    if len(guarded) > _SQL_MAX:
        raise SpecError(
            f"{', '.join(sorted(GROWING))} stand too deep inside each other; derive a column in fewer steps"
        )
    return guarded


def _guarded(tokens: Sequence[str]) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(tokens):
        growing = GROWING.get(tokens[at].lower())
        start = _next(tokens, at + 1)
        end = None if growing is None or start >= len(tokens) or tokens[start] != "(" else _closing(tokens, start)
        if growing is None or end is None:
            out.append(tokens[at])
            at += 1
            continue
        arguments = ["".join(_guarded(argument)) for argument in _arguments(tokens[start + 1 : end])]
        if len(arguments) > growing.argument and not growing.is_small(arguments):
            count, each = growing.size(arguments)
            sizes = f"(CAST({count} AS BIGINT), CAST({each} AS BIGINT))"
            value = f"CASE WHEN {GUARD}{sizes} THEN {arguments[growing.argument]} END"
            arguments[growing.argument] = f"{COUNT_GUARD}{sizes}" if growing.is_count else value
        out.append(f"{tokens[at]}({', '.join(arguments)})")
        at = end + 1
    return out


def _next(tokens: Sequence[str], at: int) -> int:
    while at < len(tokens) and tokens[at].isspace():
        at += 1
    return at


def _closing(tokens: Sequence[str], start: int) -> int | None:
    """Return the position of the bracket that closes the one at `start`; None where none does."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += tokens[at] in ("(", "[")
        depth -= tokens[at] in (")", "]")
        if depth == 0:
            return at
    return None


def _arguments(tokens: Sequence[str]) -> list[Sequence[str]]:
    """Split at the commas that are in no bracket."""
    depth = 0
    begin = 0
    parts: list[Sequence[str]] = []
    for at, part in enumerate(tokens):
        depth += part in ("(", "[")
        depth -= part in (")", "]")
        if part == "," and depth == 0:
            parts.append(tokens[begin:at])
            begin = at + 1
    return [*parts, tokens[begin:]]


def check_guards(expression: Any, label: str) -> None:
    """Raise SpecError for a call that may make much and is not guarded: its SQL is written in an unusual way."""
    name = expression.rex_call_operator()
    growing = GROWING.get(name)
    if growing is None:
        return
    operands = expression.rex_call_operands()
    if len(operands) <= growing.argument:
        return
    operand = operands[growing.argument].canonical_name()
    is_guarded = operand.startswith(f"{COUNT_GUARD}(" if growing.is_count else f"CASE WHEN {GUARD}(")
    if not is_guarded and operands[growing.argument].variant_name() != "Literal":
        raise SpecError(f"{label}: {name} is written in a way that headrace cannot bound; write it as {name}(…)")


def _within_bound(counts: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return true for each row. Raises ValueError where one would make more than BYTES_MAX."""
    product = pc.multiply(counts.cast(pa.float64(), safe=False), sizes.cast(pa.float64(), safe=False))
    if (pc.max(product).as_py() or 0) > BYTES_MAX:
        raise ValueError(f"a function would make a text of more than {BYTES_MAX:,} bytes")
    return pa.repeat(pa.scalar(True), len(counts))


def _bounded_count(counts: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return the counts, a negative one as 0. Raises ValueError as `_within_bound` does."""
    _within_bound(counts, sizes)
    return pc.max_element_wise(counts, pa.scalar(0, pa.int64()), skip_nulls=False)


def register_guards(context: Any) -> None:
    """Let the expressions of a session call the guards."""
    from datafusion import udf

    sizes = [pa.int64(), pa.int64()]
    context.register_udf(udf(_within_bound, sizes, pa.bool_(), "volatile", GUARD))
    context.register_udf(udf(_bounded_count, sizes, pa.int64(), "volatile", COUNT_GUARD))
