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

from headrace.writer.specs.spec import SpecError

# Bytes that one call may make of one record, or add to it.
BYTES_MAX = 99_999
GUARD = "within_bound"
COUNT_GUARD = "bounded_count"
GUARDS = frozenset((GUARD, COUNT_GUARD))
# Characters of an expression that is rewritten: each call repeats its arguments.
_SQL_CHARACTERS_MAX = 20_000
# Characters of a text in an expression that may be put in without a guard.
_SHORT_CHARACTERS = 8
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][A-Za-z0-9_]*|\s+|--[^\n]*|/\*.*?\*/|.""",
    re.DOTALL,
)
_NUMBER = re.compile(r"\d{1,5}")
_TEXT = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True)
class _GrowingFunction:
    """A function that may make much."""

    # Position of the argument that is guarded.
    argument: int
    # SQL of how many pieces it makes, and of bytes in each.
    size: Callable[[Sequence[str]], tuple[str, str]]
    # Whether its arguments, as they are written, make little.
    is_small: Callable[[Sequence[str]], bool]
    # The argument is a number; a negative one counts as 0.
    is_count: bool = False


def _length_size(arguments: Sequence[str]) -> tuple[str, str]:
    return arguments[1], "1"


def _repeat_size(arguments: Sequence[str]) -> tuple[str, str]:
    return arguments[1], f"octet_length({arguments[0]})"


def _replace_size(arguments: Sequence[str]) -> tuple[str, str]:
    text, pattern, new = arguments[:3]
    size = f"octet_length({pattern})"
    matched_size = f"(octet_length({text}) - octet_length(replace({text}, {pattern}, '')))"
    count = f"CASE WHEN {size} = 0 THEN octet_length({text}) + 1 ELSE {matched_size} / {size} END"
    return count, f"octet_length({new})"


def _regexp_replace_size(arguments: Sequence[str]) -> tuple[str, str]:
    text, pattern, new = arguments[:3]
    has_groups = f"strpos({new}, '\\') + strpos({new}, '$') > 0"
    piece_size = f"octet_length({new}) * CASE WHEN {has_groups} THEN octet_length({text}) + 1 ELSE 1 END"
    return f"regexp_count({text}, {pattern}) + 1", piece_size


def _array_to_string_size(arguments: Sequence[str]) -> tuple[str, str]:
    return f"cardinality({arguments[0]})", f"octet_length({arguments[1]})"


def _has_short_length(arguments: Sequence[str]) -> bool:
    return len(arguments) > 1 and _NUMBER.fullmatch(arguments[1].strip()) is not None


def _never(_: Sequence[str]) -> bool:
    return False


def _adds_nothing(arguments: Sequence[str]) -> bool:
    pattern, new = (_TEXT.fullmatch(argument.strip()) for argument in arguments[1:3])
    return pattern is not None and new is not None and max(len(new[1]), 1) <= len(pattern[1])


def _has_short_text(argument: int) -> Callable[[Sequence[str]], bool]:
    """Return what tells whether an argument is a short text without references to groups."""

    def has_short_text(arguments: Sequence[str]) -> bool:
        if len(arguments) <= argument:
            return False
        text = _TEXT.fullmatch(arguments[argument].strip())
        return text is not None and len(text[1]) <= _SHORT_CHARACTERS and not set(text[1]) & set("\\$")

    return has_short_text


_JOIN = _GrowingFunction(1, _array_to_string_size, _has_short_text(1))
GROWING: Mapping[str, _GrowingFunction] = {
    "lpad": _GrowingFunction(1, _length_size, _has_short_length, is_count=True),
    "rpad": _GrowingFunction(1, _length_size, _has_short_length, is_count=True),
    "repeat": _GrowingFunction(1, _repeat_size, _never, is_count=True),
    "replace": _GrowingFunction(2, _replace_size, _adds_nothing),
    "regexp_replace": _GrowingFunction(2, _regexp_replace_size, _has_short_text(2)),
    "array_to_string": _JOIN,
    "array_join": _JOIN,
    "list_to_string": _JOIN,
    "list_join": _JOIN,
}


def guard_calls(sql: str) -> str:
    """Return an expression whose growing calls ask `within_bound` first. Raises SpecError for one that grows too long.

    What is no SQL stays what it is, for DataFusion to refuse.
    """
    matches = (match[0] for match in _TOKEN.finditer(sql))
    tokens = [" " if token.startswith(("--", "/*")) else token for token in matches]
    guards = GUARDS & {token.strip('"').lower() for token in tokens}
    if guards:
        raise SpecError(f"{', '.join(guards)} is a function of headrace's own; take it out")
    if not any(token.lower() in GROWING for token in tokens):
        return sql
    guarded = "".join(_guard_tokens(tokens))
    if len(guarded) > _SQL_CHARACTERS_MAX:
        raise SpecError(
            f"{', '.join(sorted(GROWING))} stand too deep inside each other; derive a column in fewer steps"
        )
    return guarded


def _guard_tokens(tokens: Sequence[str]) -> list[str]:
    """Return the tokens with each growing call as one token, which asks its guard first."""
    guarded: list[str] = []
    position = 0
    while position < len(tokens):
        growing = GROWING.get(tokens[position].lower())
        opening = _skip_spaces(tokens, position + 1)
        is_call = growing is not None and opening < len(tokens) and tokens[opening] == "("
        closing = _closing_bracket(tokens, opening) if is_call else None
        if growing is None or closing is None:
            guarded.append(tokens[position])
            position += 1
            continue
        arguments = ["".join(_guard_tokens(argument)) for argument in _split_arguments(tokens[opening + 1 : closing])]
        if len(arguments) > growing.argument and not growing.is_small(arguments):
            arguments[growing.argument] = _guard_argument(growing, arguments)
        guarded.append(f"{tokens[position]}({', '.join(arguments)})")
        position = closing + 1
    return guarded


def _guard_argument(growing: _GrowingFunction, arguments: Sequence[str]) -> str:
    count, piece_size = growing.size(arguments)
    sizes = f"(CAST({count} AS BIGINT), CAST({piece_size} AS BIGINT))"
    if growing.is_count:
        return f"{COUNT_GUARD}{sizes}"
    return f"CASE WHEN {GUARD}{sizes} THEN {arguments[growing.argument]} END"


def _skip_spaces(tokens: Sequence[str], position: int) -> int:
    """Return the position of the next token that is no space."""
    while position < len(tokens) and tokens[position].isspace():
        position += 1
    return position


def _closing_bracket(tokens: Sequence[str], opening: int) -> int | None:
    """Return the position of the bracket that closes the one at `opening`; None where none does."""
    depth = 0
    for position in range(opening, len(tokens)):
        depth += tokens[position] in ("(", "[")
        depth -= tokens[position] in (")", "]")
        if depth == 0:
            return position
    return None


def _split_arguments(tokens: Sequence[str]) -> list[Sequence[str]]:
    """Split at the commas that are in no bracket."""
    depth = 0
    start = 0
    arguments: list[Sequence[str]] = []
    for position, part in enumerate(tokens):
        depth += part in ("(", "[")
        depth -= part in (")", "]")
        if part == "," and depth == 0:
            arguments.append(tokens[start:position])
            start = position + 1
    return [*arguments, tokens[start:]]


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
    guard_call = f"{COUNT_GUARD}(" if growing.is_count else f"CASE WHEN {GUARD}("
    is_guarded = operand.startswith(guard_call)
    if not is_guarded and operands[growing.argument].variant_name() != "Literal":
        raise SpecError(f"{label}: {name} is written in a way that headrace cannot bound; write it as {name}(…)")


def _check_result_sizes(counts: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return true for each row. Raises ValueError where one would make more than BYTES_MAX."""
    product = pc.multiply(counts.cast(pa.float64(), safe=False), sizes.cast(pa.float64(), safe=False))
    if (pc.max(product).as_py() or 0) > BYTES_MAX:
        raise ValueError(f"a function would make a text of more than {BYTES_MAX:,} bytes")
    return pa.repeat(pa.scalar(True), len(counts))


def _limit_counts(counts: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return the counts, a negative one as 0. Raises ValueError as `_check_result_sizes` does."""
    _check_result_sizes(counts, sizes)
    return pc.max_element_wise(counts, pa.scalar(0, pa.int64()), skip_nulls=False)


def register_guards(context: Any) -> None:
    """Let the expressions of a session call the guards."""
    from datafusion import udf

    sizes = [pa.int64(), pa.int64()]
    context.register_udf(udf(_check_result_sizes, sizes, pa.bool_(), "volatile", GUARD))
    context.register_udf(udf(_limit_counts, sizes, pa.int64(), "volatile", COUNT_GUARD))
