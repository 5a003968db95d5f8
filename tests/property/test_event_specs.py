"""Event specs over random rows equal a row at a time in Python, however the rows are cut into batches."""

from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from headrace.writer.config.sections.record_rules import EventSpec
from headrace.writer.specs.step import Step
from tests.support.example_counts import share

POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.int32()), ("s", pa.string()), ("p", POINT)])
Row = dict[str, Any]


class Fails(Exception):
    """The expression has no value for a row."""


@dataclass(frozen=True)
class Leaf:
    """A column, or a number."""

    sql: str

    def of(self, row: Row) -> Any:
        if self.sql == "p['x']":
            return None if row["p"] is None else row["p"]["x"]
        return row[self.sql] if self.sql in row else int(self.sql)


@dataclass(frozen=True)
class Two:
    """An operator between two expressions."""

    left: Any
    operator: str
    right: Any

    @property
    def sql(self) -> str:
        return f"({self.left.sql} {self.operator} {self.right.sql})"

    def of(self, row: Row) -> Any:
        one, other = self.left.of(row), self.right.of(row)
        if one is None or other is None:
            return None
        match self.operator:
            case "+":
                return one + other
            case "-":
                return one - other
            case "*":
                return one * other
            case ">":
                return one > other
            case "=":
                return one == other
        if other == 0:
            raise Fails
        quotient = abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)
        return quotient if self.operator == "/" else one - quotient * other


@dataclass(frozen=True)
class Case:
    """One expression where a condition is true, else another."""

    when: Any
    then: Any
    otherwise: Any

    @property
    def sql(self) -> str:
        return f"(CASE WHEN {self.when.sql} THEN {self.then.sql} ELSE {self.otherwise.sql} END)"

    def of(self, row: Row) -> Any:
        return self.then.of(row) if self.when.of(row) is True else self.otherwise.of(row)


@dataclass(frozen=True)
class Number:
    """A text as a number."""

    sql: str = "CAST(s AS BIGINT)"

    def of(self, row: Row) -> Any:
        if row["s"] is None:
            return None
        if not row["s"].isdecimal():
            raise Fails
        return int(row["s"])


LEAVES = st.one_of(st.sampled_from(["a", "b", "p['x']"]).map(Leaf), st.integers(0, 5).map(lambda n: Leaf(str(n))))
INTEGERS = st.recursive(
    st.one_of(LEAVES, st.just(Number())),
    lambda inner: st.builds(Two, inner, st.sampled_from("+-*/%"), LEAVES.filter(lambda leaf: not leaf.sql.isdigit())),
    max_leaves=3,
)  # fmt: skip
CONDITIONS = st.builds(Two, INTEGERS, st.sampled_from([">", "="]), LEAVES)
CHOICES = st.builds(Case, st.builds(Two, LEAVES, st.sampled_from([">", "="]), LEAVES), INTEGERS, LEAVES)
SMALL = st.none() | st.integers(-9, 9)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"a": SMALL, "b": SMALL, "s": st.none() | st.sampled_from(["7", "12", "x", "", "ü"]),
         "p": st.none() | st.fixed_dictionaries({"x": SMALL, "y": st.just("k")})}
    ),
    max_size=40,
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    where: Any
    derive: Any
    cast: bool
    share: Fraction | None

    @property
    def step(self) -> Step:
        section: dict[str, Any] = {"columns": {"exclude": ["p.y"]}, "rename": {"b": "c"}, "flatten": ["p"]}
        section |= {"where": self.where.sql} if self.where else {}
        section |= {"derive": {"d": self.derive.sql}} if self.derive else {}
        section |= {"cast": {"s": "long"}} if self.cast else {}
        section |= {"sample": {"share": f"{float(self.share * 100)} %", "by": "s"}} if self.share else {}
        return Step(EventSpec.model_validate(section).spec("T"), COLUMNS)

    def expected(self, row: Row) -> Row | str:
        """What becomes of a row: a row, or why not."""
        try:
            if self.where and self.where.of(row) is not True:
                return "where"
            digest = int(sha256((row["s"] or "").encode()).hexdigest(), 16)
            if self.share and digest >= self.share * 2**256:
                return "sample"
            found = {"a": row["a"], "c": row["b"], "s": Number().of(row) if self.cast else row["s"],
                     "p_x": row["p"] and row["p"]["x"]}  # fmt: skip
            return {**found, **({"d": self.derive.of(row)} if self.derive else {})}
        except Fails:
            return "failed"


def found_by(step: Step, rows: pa.Table) -> list[Row | str]:
    """What the step makes of each row."""
    found = step.apply(rows)
    made: list[Row | str] = [""] * rows.num_rows
    for rule, mask in found.filtered.items():
        for at in mask.nonzero()[0].tolist():
            assert made[at] == ""
            made[at] = rule
    for at in found.failures:
        assert made[at] == ""
        made[at] = "failed"
    left = [index for index, outcome in enumerate(made) if outcome == ""]
    assert len(left) == found.rows.num_rows
    assert found.rows.schema == step.columns
    for at, row in zip(left, found.rows.to_pylist(), strict=True):
        made[at] = row
    return made


DRAWN = st.builds(
    Drawn, st.none() | CONDITIONS, st.none() | INTEGERS | CHOICES, st.booleans(),
    st.none() | st.sampled_from([Fraction(1, 2), Fraction(1, 4), Fraction(1)]),
)  # fmt: skip


@settings(max_examples=share(60), deadline=None)
@given(DRAWN, ROWS, st.integers(0, 40))
def test_a_spec_does_what_a_row_at_a_time_does(drawn: Drawn, rows: list[Row], cut: int) -> None:
    table, step = pa.Table.from_pylist(rows, COLUMNS), drawn.step
    expected = [drawn.expected(row) for row in rows]
    assert found_by(step, table) == expected
    assert [*found_by(step, table.slice(0, cut)), *found_by(step, table.slice(cut))] == expected
