"""A process that evaluates expressions for a fuzzer: with a limit of its memory, one answer a line.

In: a line of JSON, a list of SQL expressions and a seed of rows. Out: a line for each expression with what became of
it, or none, where the process died.
"""

import json
import random
import resource
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.writer.config.sections.record_rules import EventSpec
from headrace.writer.specs.spec import SpecError
from headrace.writer.specs.step import Step

MEMORY_BYTES = 3 << 30  # more than the process has once it is ready
ROWS = 4
SEEDS = 100  # so many tables there are
_TEXT = pa.field("element", pa.string())
COLUMNS = pa.schema(
    [
        ("t", pa.string()),
        ("n", pa.int64()),
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("d", pa.decimal128(38, 9)),
        ("b", pa.bool_()),
        ("x", pa.binary()),
        ("e", pa.timestamp("us", "UTC")),
        ("y", pa.date32()),
        ("l", pa.list_(_TEXT)),
        ("m", pa.map_(pa.string(), pa.string())),
        ("s", pa.struct([("a", pa.string())])),
    ]
)
NUMBERS = (
    0, 1, -1, 2, 7, 255, 10**5 - 1, 10**5, 10**6, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
TEXTS = (
    "", "a", "word", "ü", "😀" * 9, "\0", "%Y-%m-%dT%H:%M:%S", "%", "a{40}{40}", "(a*)*b", "[", "\\", "\\1$0", "$1",
    "2026-11-20T00:00:00Z", "9" * 400, "-1", "1e308", "sha256", "hex", "base64", "month", "century", "a" * 4_000, "=",
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 9.3e18)
TIMES = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
)


@lru_cache(SEEDS)
def rows(seed: int) -> pa.Table:
    """Return rows of extreme values, the same for a seed."""
    draw = random.Random(seed)

    def row() -> dict[str, Any]:
        texts = draw.choices((*TEXTS, None), k=draw.choice((0, 1, 3, 40)))
        values = {
            "t": draw.choice(TEXTS),
            "n": draw.choice(NUMBERS),
            "i": draw.choice((0, 1, -1, 2**31 - 1, -(2**31))),
            "f": draw.choice(FLOATS),
            "d": draw.choice((Decimal(0), Decimal("9" * 29), Decimal("-0.000000001"))),
            "b": draw.random() < 0.5,
            "x": draw.choice(TEXTS).encode(),
            "e": draw.choice(TIMES),
            "y": date(1, 1, 1) + timedelta(days=draw.choice((0, 719_162, 3_652_058))),
            "l": texts,
            "m": dict.fromkeys((text for text in texts if text is not None), "v"),
            "s": {"a": draw.choice(TEXTS)},
        }
        return {name: None if draw.random() < 0.1 else value for name, value in values.items()}

    return pa.Table.from_pylist([row() for _ in range(ROWS)], COLUMNS)


def evaluate(sql: str, seed: int) -> str:
    """Evaluate an expression. Returns refused, or how many rows it has a result for."""
    try:
        step = Step(EventSpec.model_validate({"derive": {"r": sql}}).spec("T"), COLUMNS)
    except SpecError:
        return "refused"
    shaped = step.apply(rows(seed))
    assert shaped.rows.num_rows + len(shaped.failures) == ROWS, sql
    return f"{shaped.rows.num_rows} rows"


def main() -> None:
    evaluate("repeat(t, i)", 0)
    resource.setrlimit(resource.RLIMIT_AS, (_memory_bytes() + MEMORY_BYTES, resource.RLIM_INFINITY))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        expressions, seed = json.loads(line)
        for sql in expressions:
            sys.stdout.write(f"{evaluate(sql, seed)}\n")
            sys.stdout.flush()


def _memory_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
