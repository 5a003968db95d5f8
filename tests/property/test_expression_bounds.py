"""No allowed function, with any arguments, ends the process that evaluates it, or fills its memory.

Expressions are evaluated in a child process with a limit of its memory, so that an abort fails the test.
"""

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.expression_child import NUMBERS, TEXTS
from writer.specs.functions import ALLOWED
from writer.specs.growth import BYTES_MAX, GROWING

ANSWER_WITHIN_S = 60
IS_LONG = settings.default.max_examples >= 1_000
EXAMPLES = 50_000 if IS_LONG else 100  # of each test: 100,000 in the long profile
DEPTH = 2 if IS_LONG else 1  # of calls inside calls
# Kinds of arguments that make sense, by letter: columns of the child, and literals.
KINDS = {
    "t": ("t", "s['a']", "''", "'word'", "l[1]"), "n": ("n", "i", "0", "-1", "3", "length(t)"), "f": ("f", "n / 3.0"),
    "d": ("d",), "b": ("b", "n > 0"), "x": ("x",), "e": ("e", "y"), "l": ("l", "make_array(t, t)"), "m": ("m",),
    "s": ("s",), "v": ("INTERVAL '1 day'",),
}  # fmt: skip
SIGNATURES: dict[str, tuple[str, ...]] = {
    "coalesce": ("tt", "nn"), "nullif": ("tt", "nn"), "nvl": ("tt",), "nvl2": ("ttt",), "greatest": ("nn", "tt"),
    "least": ("nn", "ff"), "ascii": ("t",), "bit_length": ("t",), "btrim": ("tt",), "character_length": ("t",),
    "chr": ("n",), "concat": ("ttt",), "concat_ws": ("ttt",), "contains": ("tt",), "ends_with": ("tt",),
    "initcap": ("t",), "left": ("tn",), "lower": ("t",), "lpad": ("tn", "tnt"), "ltrim": ("tt",),
    "octet_length": ("t",), "overlay": ("ttn", "ttnn"), "regexp_count": ("tt", "ttn"), "regexp_like": ("tt",),
    "regexp_match": ("tt",), "regexp_replace": ("ttt", "tttt"), "repeat": ("tn",), "replace": ("ttt",),
    "reverse": ("t",), "right": ("tn",), "rpad": ("tn", "tnt"), "rtrim": ("tt",), "split_part": ("ttn",),
    "starts_with": ("tt",), "strpos": ("tt",), "substr": ("tn", "tnn"), "substr_index": ("ttn",), "to_hex": ("n",),
    "translate": ("ttt",), "upper": ("t",), "decode": ("tt", "xt"), "digest": ("tt",), "encode": ("tt", "xt"),
    "md5": ("t",), "sha224": ("t",), "sha256": ("x",), "sha384": ("t",), "sha512": ("t",), "abs": ("n", "f", "d"),
    "ceil": ("f", "d"), "floor": ("f", "d"), "isnan": ("f",), "iszero": ("f",), "round": ("f", "fn", "dn"),
    "signum": ("f",), "sqrt": ("f",), "trunc": ("f", "fn"), "date_bin": ("ve",), "date_part": ("te",),
    "date_trunc": ("te",), "from_unixtime": ("n",), "make_date": ("nnn",), "to_char": ("et",), "to_date": ("t", "tt"),
    "to_timestamp": ("t", "n", "tt"), "to_timestamp_micros": ("n", "t"), "to_timestamp_millis": ("n", "t"),
    "to_timestamp_seconds": ("n", "t"), "to_unixtime": ("t", "e"), "array_append": ("lt",), "array_concat": ("ll",),
    "array_distinct": ("l",), "array_element": ("ln",), "array_has": ("lt",), "array_has_all": ("ll",),
    "array_has_any": ("ll",), "array_length": ("l", "ln"), "array_slice": ("lnn", "lnnn"),
    "array_to_string": ("lt", "ltt"), "cardinality": ("l", "m"), "get_field": ("st",), "make_array": ("tt", "nn"),
    "map_extract": ("mt",), "map_keys": ("m",), "map_values": ("m",), "named_struct": ("tt",),
    "string_to_array": ("tt", "ttt"), "struct": ("tn",),
}  # fmt: skip
# Arguments that must be one of few words, by their position.
WORDS = {
    "date_part": (0, "'month'"), "date_trunc": (0, "'month'"), "get_field": (1, "'a'"), "named_struct": (0, "'a'"),
    "digest": (1, "'md5'"), "decode": (1, "'hex'"), "encode": (1, "'hex'"),
}  # fmt: skip
RETURNING = {
    "t": ("concat", "lpad", "rpad", "repeat", "replace", "regexp_replace", "array_to_string", "overlay", "translate",
          "encode", "initcap", "upper", "reverse", "to_char", "md5", "split_part"),
    "n": ("length", "strpos", "cardinality", "ascii", "abs"),
    "l": ("string_to_array", "array_concat", "array_append", "make_array"),
}  # fmt: skip
LITERALS = {
    "t": st.sampled_from([f"'{text}'" for text in TEXTS if not set(text) & set("\0'")]),
    "n": st.sampled_from(NUMBERS).map(str),
}  # fmt: skip


@st.composite
def arguments(draw: st.DrawFn, kind: str, depth: int) -> str:
    options: list[st.SearchStrategy[str]] = [st.sampled_from(KINDS[kind])]
    if kind in LITERALS:
        options.append(LITERALS[kind])
    if kind in RETURNING and depth:
        names = [name for name in RETURNING[kind] if name in SIGNATURES]
        options.append(st.sampled_from(names).flatmap(lambda name: calls(name, depth - 1)))
    return draw(st.one_of(options))


@st.composite
def calls(draw: st.DrawFn, name: str, depth: int) -> str:
    kinds = draw(st.sampled_from(SIGNATURES[name]))
    return f"{name}({', '.join(draw(arguments(kind, depth)) for kind in kinds)})"


CALLS = st.sampled_from(sorted(ALLOWED)).flatmap(lambda name: calls(name, DEPTH))
GROWING_CALLS = st.sampled_from(sorted(ALLOWED & GROWING.keys())).flatmap(lambda name: calls(name, DEPTH))


class Child:
    """The process that evaluates; a new one for each that died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, sql: str, seed: int) -> str:
        """Return what became of an expression. Fails where the process ended, or does not answer."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps([sql, seed])}\n")
        process.stdin.flush()
        answer = self._line(process)
        if not answer:
            self.stop()
        assert answer, f"the process ended, or gave no answer within {ANSWER_WITHIN_S} s"
        return answer

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.expression_child"], cwd=Path(__file__).parents[2], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._line(self._process) == "ready"
        return self._process

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_WITHIN_S)
        return process.stdout.readline().strip() if ready else ""

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    started = Child()
    yield started
    started.stop()


def test_the_fuzzer_knows_all_functions_that_are_allowed() -> None:
    assert SIGNATURES.keys() == ALLOWED


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_function_has_a_result_for_some_row(child: Child, name: str) -> None:
    """So the fuzzer evaluates it, and is not only refused."""
    outcomes = set[str]()
    for kinds in SIGNATURES[name]:
        given_arguments = [KINDS[kind][0] for kind in kinds]
        if name in WORDS:
            at, word = WORDS[name]
            given_arguments[at] = word
        outcomes |= {child.ask(f"{name}({', '.join(given_arguments)})", seed) for seed in range(3)}
    assert outcomes - {"refused", "0 rows"}, outcomes


@settings(max_examples=EXAMPLES, deadline=None)
@given(sql=CALLS, seed=st.integers(0, 99))
@example("rpad(t, 4611686018427387904)", 0)
@example("lpad(t, 2147483647, '😀')", 0)
def test_no_function_ends_the_process(child: Child, sql: str, seed: int) -> None:
    child.ask(sql, seed)


@settings(max_examples=EXAMPLES, deadline=None)
@given(sql=GROWING_CALLS, seed=st.integers(0, 99))
@example("repeat(repeat(t, n), n)", 0)
@example("replace(replace(t, '', t), '', t)", 1)
@example("regexp_replace(t, 'a', '$0$0$0$0$0$0$0$0', 'g')", 2)
def test_no_function_that_multiplies_ends_the_process(child: Child, sql: str, seed: int) -> None:
    child.ask(sql, seed)


@pytest.mark.parametrize("call", ["rpad(t, n)", "lpad(t, n, 'ab')", "repeat(t, n)", "repeat('word', n)"])
def test_a_record_beyond_the_bound_fails_alone_with_a_reason(call: str) -> None:
    import pyarrow as pa

    from writer.config.record_rules import EventSpec
    from writer.specs.step import Step

    columns = pa.schema([("t", pa.string()), ("n", pa.int64())])
    rows = pa.table({"t": ["w"] * 5, "n": [3, BYTES_MAX + 1, 4, 2**62, 5]}, schema=columns)
    shaped = Step(EventSpec.model_validate({"derive": {"r": call}}).spec("T"), columns).apply(rows)
    assert shaped.rows.num_rows == 3
    assert set(shaped.failed) == {1, 3}
    assert set(shaped.failed.values()) == {f"derive.r: a function would make a text of more than {BYTES_MAX:,} bytes"}
    guarded = Step(EventSpec.model_validate({"derive": {"r": f"CASE WHEN n < 9 THEN {call} END"}}).spec("T"), columns)
    assert not guarded.apply(rows).failed, "what is not reached fails on no record"
