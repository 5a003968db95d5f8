"""Two tables that were written of the same offsets are compared by offset and column."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given, strategies as st
from pyiceberg.expressions import EqualTo
from typer.testing import CliRunner

from headrace.writer.audit.comparison import unequal_values
from headrace.writer.cli.main import app
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.sample_records import NOW, event
from tests.support.tables import iceberg_table_of


def carried(root: Path, form: str, values: dict[int, bytes | None], end: int, **settings: Any) -> Path:
    """Write a table. Returns its configuration file."""
    driver = Driver(root, form, **settings)
    driver.start()
    driver.carry([log(values)], {0: end})
    file = root / "pipelines.yaml"
    file.write_text(yaml.safe_dump(driver.config.model_dump(mode="json", exclude_unset=True)))
    return file


def compared(*words: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["diff", *(str(word) for word in words), "--json"])
    assert result.exit_code == code, result.output
    return dict(json.loads(result.output))


@pytest.mark.parametrize("forms", [("delta", "parquet"), ("parquet", "iceberg")])
def test_the_same_offsets_by_the_same_rules_are_the_same_in_any_format(tmp_path: Path, forms: tuple[str, str]) -> None:
    values = {offset: event(offset, event_time=NOW - timedelta(hours=offset)) for offset in range(20)}
    first, other = (carried(tmp_path / form, form, values, 20) for form in forms)
    comparison = compared(first, "--with", other)
    assert (comparison["same"], comparison["offsets"], comparison["equal"], comparison["samples"]) == (True, 20, 20, [])


@pytest.mark.parametrize("second", ["delta", "iceberg"])
def test_rows_that_another_client_of_iceberg_wrote_anew_are_compared(tmp_path: Path, second: str) -> None:
    values = {offset: event(offset, event_time=NOW) for offset in range(12)}
    first, other = carried(tmp_path / "one", "iceberg", values, 12), carried(tmp_path / "two", second, values, 12)
    catalog_table = pipeline_config(tmp_path / "one", "iceberg").catalog_place(
        "clicks", str(tmp_path / "one" / "lake" / "clicks")
    )
    iceberg_table_of(str(tmp_path / "one" / "lake" / "clicks"), catalog_table).delete(EqualTo("_offset", 3))
    comparison = compared(first, "--with", other, code=1)
    assert (comparison["equal"], comparison["only_first"], comparison["only_second"]) == (11, 0, 1)


def test_differences_are_counted_by_column_and_shown(tmp_path: Path) -> None:
    values = {offset: event(offset, event_time=NOW) for offset in range(12)}
    first = carried(tmp_path / "one", "delta", values, 12)
    specs = {"Event": {"where": "id <> 3", "derive": {"note": "'n' || id"}, "columns": {"exclude": ["note"]}}}
    other = carried(tmp_path / "other", "delta", {**values, 5: b"\0\0\0\0\1cut", 12: event(12)}, 13, specs=specs)
    comparison = compared(first, "--with", other, code=1)
    assert (comparison["offsets"], comparison["equal"], comparison["different"]) == (12, 0, 10)
    assert (comparison["only_first"], comparison["only_second"], comparison["columns"]) == (2, 0, {"note": 10})
    by_offset = {sample["offset"]: sample for sample in comparison["samples"]}
    assert by_offset[1] == {
        "topic": "clicks", "partition": 0, "offset": 1, "columns": ["note"], "first": {"note": None},
        "second": {"note": "n1"},
    }  # fmt: skip
    assert by_offset[3]["second"] is None
    shown = CliRunner().invoke(app, ["diff", str(first), "--with", str(other), "--samples", "2"]).output
    assert "12 offsets that both tables committed: 0 rows equal, 10 different, 2 only in the first, 0 only" in shown
    assert "clicks/0:0" in shown
    assert "clicks/0:2" not in shown


def test_two_tables_without_a_common_offset_and_one_table_twice_are_refused(tmp_path: Path) -> None:
    first = carried(tmp_path / "one", "delta", {0: event(0)}, 1)
    driver = Driver(tmp_path / "other")
    driver.start(offset=7)
    other = tmp_path / "other" / "pipelines.yaml"
    other.write_text(yaml.safe_dump(driver.config.model_dump(mode="json", exclude_unset=True)))
    for arguments, problem in (
        (["--with", str(other)], "have no offset in common"), ([], "both are the same table"),
        (["--with", str(first)], "both are the table at"),
    ):  # fmt: skip
        result = CliRunner().invoke(app, ["diff", str(first), *arguments])
        assert problem in str(result.exception), result.output


VALUES = {
    pa.int64(): st.integers(-3, 3), pa.string(): st.sampled_from(["", "a", "ä"]), pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, 1.5, float("nan")]), pa.binary(): st.binary(max_size=2),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(0, 2), max_size=3),
    pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"x": st.none() | st.integers(0, 1), "y": st.none() | st.lists(st.sampled_from("ab"), max_size=2)}
    ),
    pa.map_(pa.string(), pa.int64()): st.lists(
        st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 1)), max_size=2
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(VALUES), ids=str)
def test_values_differ_as_python_has_it(kind: pa.DataType) -> None:
    value = st.none() | VALUES[kind]

    @given(st.lists(st.tuples(value, value), max_size=8), st.integers(0, 2))
    def check(rows: list[tuple[Any, Any]], cut: int) -> None:
        first, other = (pa.array([row[side] for row in rows], kind)[cut:] for side in (0, 1))
        expected = [repr(a.as_py()) != repr(b.as_py()) for a, b in zip(first, other, strict=True)]
        assert unequal_values(first, other).tolist() == expected

    check()


def test_a_wider_type_is_the_same_where_its_values_are() -> None:
    assert not unequal_values(pa.array([1, None], pa.int64()), pa.array([1, None], pa.int32())).any()
    assert unequal_values(pa.array([1], pa.int64()), pa.array(["x"])).tolist() == [True]
    assert unequal_values(pa.array([], pa.int64()), pa.array([], pa.int64())).dtype == np.bool_
