"""No allowed function, with any arguments, ends the process that evaluates it, or fills its memory.

Expressions are evaluated in a child process with a limit of its memory, so that an abort fails the test.
"""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings, strategies as st

from headrace.writer.config.sections.record_rules import EventSpec
from headrace.writer.specs.expressions import ALLOWED
from headrace.writer.specs.growth import BYTES_MAX, GROWING
from headrace.writer.specs.spec import SpecError
from headrace.writer.specs.step import Step
from tests.support.expression_process import NUMBERS, SEEDS, TEXTS

# In the long profile 100,000 calls take some 15 minutes.
pytestmark = pytest.mark.timeout(3600)
ANSWER_WITHIN_S = 60
IS_LONG = settings.default.max_examples >= 1_000
CALLS = 70_000 if IS_LONG else 100
GROWING_CALLS = 30_000 if IS_LONG else 100  # of functions that multiply: each takes twice as long
CALLS_AT_ONCE = 20  # that one seed gives: hypothesis takes longer to draw a call than the child to evaluate it
SEED = st.integers(0, 2**32)
DEPTH = 2 if IS_LONG else 1  # of calls inside calls
# Patterns that read no record.
CONSTANTS = ("''", "'a'", "'.*'", "'(a|b)*c?'", "'[^a]+$'", "'(\\d{1,30}){1,5}'", "'('", "'word' || '.'")
# Kinds of arguments that make sense, by letter: columns of the child, and literals.
KINDS = {
    "t": ("t", "s['a']", "''", "'word'", "l[1]"), "n": ("n", "i", "0", "-1", "3", "length(t)"), "f": ("f", "n / 3.0"),
    "d": ("d",), "b": ("b", "n > 0"), "x": ("x",), "e": ("e", "y"), "l": ("l", "make_array(t, t)"), "m": ("m",),
    "s": ("s",), "v": ("INTERVAL '1 day'",), "c": CONSTANTS, "L": ("make_array('a', '')",),
}  # fmt: skip
SIGNATURES: dict[str, tuple[str, ...]] = {
    "coalesce": ("tt", "nn"), "nullif": ("tt", "nn"), "nvl": ("tt",), "nvl2": ("ttt",), "greatest": ("nn", "tt"),
    "least": ("nn", "ff"), "ascii": ("t",), "bit_length": ("t",), "btrim": ("tc",), "character_length": ("t",),
    "chr": ("n",), "concat": ("ttt",), "concat_ws": ("ttt",), "contains": ("tt",), "ends_with": ("tt",),
    "initcap": ("t",), "left": ("tn",), "lower": ("t",), "lpad": ("tn", "tnt"), "ltrim": ("tc",),
    "octet_length": ("t",), "overlay": ("ttn", "ttnn"), "regexp_count": ("tc", "tcn"), "regexp_like": ("tc",),
    "regexp_match": ("tc",), "regexp_replace": ("tct", "tctt"), "repeat": ("tn",), "replace": ("ttt",),
    "reverse": ("t",), "right": ("tn",), "rpad": ("tn", "tnt"), "rtrim": ("tc",), "split_part": ("ttn",),
    "starts_with": ("tt",), "strpos": ("tt",), "substr": ("tn", "tnn"), "substr_index": ("ttn",), "to_hex": ("n",),
    "translate": ("ttt",), "upper": ("t",), "decode": ("tt", "xt"), "digest": ("tt",), "encode": ("tt", "xt"),
    "md5": ("t",), "sha224": ("t",), "sha256": ("x",), "sha384": ("t",), "sha512": ("t",), "abs": ("n", "f", "d"),
    "ceil": ("f", "d"), "floor": ("f", "d"), "isnan": ("f",), "iszero": ("f",), "round": ("f", "fn", "dn"),
    "signum": ("f",), "sqrt": ("f",), "trunc": ("f", "fn"), "date_bin": ("ve",), "date_part": ("te",),
    "date_trunc": ("te",), "from_unixtime": ("n",), "make_date": ("nnn",), "to_char": ("et",), "to_date": ("t", "tt"),
    "to_timestamp": ("t", "n", "tt"), "to_timestamp_micros": ("n", "t"), "to_timestamp_millis": ("n", "t"),
    "to_timestamp_seconds": ("n", "t"), "to_unixtime": ("t", "e"), "array_append": ("lt",), "array_concat": ("ll",),
    "array_distinct": ("l",), "array_element": ("ln",), "array_has": ("lt",), "array_has_all": ("lL",),
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
    "n": ("character_length", "strpos", "cardinality", "ascii", "abs"),
    "l": ("string_to_array", "array_concat", "array_append", "make_array"),
}  # fmt: skip
LITERALS = {
    "t": tuple(f"'{text}'" for text in TEXTS if not set(text) & set("\0'")),
    "n": tuple(str(number) for number in NUMBERS),
}


def draw_call(draw: Random, name: str, depth: int) -> str:
    """Write a call of a function with random arguments. `depth`: of calls inside it."""
    kinds = draw.choice(SIGNATURES[name])
    return f"{name}({', '.join(draw_argument(draw, kind, depth) for kind in kinds)})"


def draw_argument(draw: Random, kind: str, depth: int) -> str:
    options = [KINDS[kind]]
    if kind in LITERALS:
        options.append(LITERALS[kind])
    if kind in RETURNING and depth:
        options.append(RETURNING[kind])
    choice = draw.choice(options)
    word = draw.choice(choice)
    return draw_call(draw, word, depth - 1) if choice is RETURNING.get(kind) else word


def draw_calls(seed: int, names: Collection[str], count: int) -> list[str]:
    """Write calls of some functions, the same for a seed."""
    draw = Random(seed)
    ordered = sorted(names)
    return [draw_call(draw, draw.choice(ordered), DEPTH) for _ in range(count)]


class Child:
    """The process that evaluates; a new one for each that died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, expressions: Sequence[str], seed: int) -> list[str]:
        """Return what became of each expression. Fails where the process ended, or does not answer in time."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps([expressions, seed % SEEDS])}\n")
        process.stdin.flush()
        answers = [line.strip() for line in self._lines(process, len(expressions))]
        if len(answers) < len(expressions):
            self.stop()
            sql = expressions[len(answers)]
            pytest.fail(f"the process ended, or gave no answer within {ANSWER_WITHIN_S} s: {sql} with seed {seed}")
        return answers

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.expression_process"], cwd=Path(__file__).parents[2], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert list(self._lines(self._process, 1)) == ["ready\n"]
        return self._process

    @staticmethod
    def _lines(process: subprocess.Popen[str], count: int) -> Iterator[str]:
        """Yield lines; fewer where the process ends. One that does not answer is ended."""
        assert process.stdout is not None
        limit = threading.Timer(ANSWER_WITHIN_S, process.kill)
        limit.start()
        try:
            yield from itertools.islice(process.stdout, count)
        finally:
            limit.cancel()

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
    calls = list[str]()
    for kinds in SIGNATURES[name]:
        given_arguments = [KINDS[kind][0] for kind in kinds]
        if name in WORDS:
            at, word = WORDS[name]
            given_arguments[at] = word
        calls.append(f"{name}({', '.join(given_arguments)})")
    # The first seed has a result for most functions.
    assert any(set(child.ask(calls, seed)) - {"refused", "0 rows"} for seed in range(3)), calls


@pytest.mark.parametrize("sql", [
    "rpad(t, 4611686018427387904)", "lpad(t, 2147483647, '😀')", "lpad('', 2147483647)", "repeat(repeat(t, n), n)",
    "replace(replace(t, '', t), '', t)", "regexp_replace(t, 'a', '$0$0$0$0$0$0$0$0', 'g')",
])  # fmt: skip
def test_no_call_that_once_ended_the_process_ends_it(child: Child, sql: str) -> None:
    for seed in range(3):
        child.ask([sql], seed)


@settings(max_examples=CALLS // CALLS_AT_ONCE, deadline=None, phases=[Phase.generate])
@given(seed=SEED)
def test_no_function_ends_the_process(child: Child, seed: int) -> None:
    child.ask(draw_calls(seed, ALLOWED, CALLS_AT_ONCE), seed)


@settings(max_examples=GROWING_CALLS // CALLS_AT_ONCE, deadline=None, phases=[Phase.generate])
@given(seed=SEED)
def test_no_function_that_multiplies_ends_the_process(child: Child, seed: int) -> None:
    child.ask(draw_calls(seed, ALLOWED & GROWING.keys(), CALLS_AT_ONCE), seed)


@pytest.mark.parametrize("call", [
    "regexp_like(t, u)", "regexp_replace(t, concat('a', u), 'b')", "regexp_count(t, upper(u))", "regexp_match('a', u)",
    "t ~ u", "t !~ u", "t ~* u", "t SIMILAR TO u", "t LIKE u", "t NOT LIKE u", "t ILIKE u", "t NOT ILIKE u",
    "t NOT SIMILAR TO u", "btrim(t, u)", "ltrim(t, u)", "rtrim(t, u)", "trim(BOTH u FROM t)", "array_has_all(l, l)",
])  # fmt: skip
def test_a_pattern_that_reads_the_record_is_refused(call: str) -> None:
    columns = pa.schema([("t", pa.string()), ("u", pa.string()), ("l", pa.list_(pa.string()))])
    with pytest.raises(SpecError, match=r"derive\.r: argument 2 of .* reads '[ul]'. Write a constant"):
        Step(EventSpec.model_validate({"derive": {"r": call}}).spec("T"), columns)


def test_a_constant_pattern_may_be_computed() -> None:
    columns = pa.schema([("t", pa.string())])
    spec = EventSpec.model_validate({"derive": {"r": "regexp_like(t, 'a' || '+') AND t LIKE '%a'"}}).spec("T")
    step = Step(spec, columns)
    assert step.apply(pa.table({"t": ["aa", "b"]})).rows["r"].to_pylist() == [True, False]


@pytest.mark.parametrize("call", ["rpad(t, n)", "lpad(t, n, 'ab')", "repeat(t, n)", "repeat('word', n)"])
def test_a_record_beyond_the_bound_fails_alone_with_a_reason(call: str) -> None:
    columns = pa.schema([("t", pa.string()), ("n", pa.int64())])
    rows = pa.table({"t": ["w"] * 5, "n": [3, BYTES_MAX + 1, 4, 2**62, 5]}, schema=columns)
    shaped = Step(EventSpec.model_validate({"derive": {"r": call}}).spec("T"), columns).apply(rows)
    assert shaped.rows.num_rows == 3
    assert set(shaped.failures) == {1, 3}
    assert set(shaped.failures.values()) == {f"derive.r: a function would make a text of more than {BYTES_MAX:,} bytes"}
    guarded = Step(EventSpec.model_validate({"derive": {"r": f"CASE WHEN n < 9 THEN {call} END"}}).spec("T"), columns)
    assert not guarded.apply(rows).failures, "what is not reached fails on no record"
