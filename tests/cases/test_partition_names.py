"""Bucket columns of any name: every reader takes the names that headrace writes, and reads those of others."""

import json
import re
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import reader
from hypothesis import example, given, strategies as st
from pydantic import ValidationError
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from headrace.writer.batch.staging.bucket_folders import bucket_folder, folder_bytes_max, hive_folder, hive_value
from headrace.writer.maintenance.vacuum_plan import NeededFiles, Stored, unneeded_in_table
from headrace.writer.table.iceberg.metadata.manifests import ManifestWriter, make_avro_names
from tests.support import hive_readers
from tests.support.partition_names import NAMES, NOW, VALUES, stage, write_table
from tests.support.sample_records import config
from tests.support.tables import delta_client, iceberg_table_of

# By the specification of Avro 1.11, section "Names".
AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def partition_fields(table: Table) -> list[dict[str, Any]]:
    """Return the partition fields of the newest manifest, as another Avro library finds them in its header."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path = snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://")
    with Path(path).open("rb") as file:
        schema: Any = json.loads(reader(file).metadata["avro.schema"])
    data_file = next(field["type"] for field in schema["fields"] if field["name"] == "data_file")
    (fields,) = (field["type"]["fields"] for field in data_file["fields"] if field["name"] == "partition")
    return list(fields)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), unique=True, max_size=6))
@example(["1a", "_1a", "_1a_"])
@example(["a-b", "a_x2Db"])
@example(["ß", "_xDF", "_xDF_"])
def test_each_name_has_one_that_avro_allows_of_its_own(names: list[str]) -> None:
    made = make_avro_names(names)
    assert all(map(AVRO_NAME.match, made))
    assert len(set(made)) == len(names) == len(made)
    assert all(safe == name for name, safe in zip(names, made, strict=True) if AVRO_NAME.match(name))


@pytest.mark.parametrize("column", NAMES)
def test_a_manifest_names_partitions_as_avro_allows_and_keeps_the_name_beside(tmp_path: Path, column: str) -> None:
    location = str(tmp_path / "lake")
    write_table(location, "iceberg", column)
    table = iceberg_table_of(location)
    (field,) = partition_fields(table)
    assert AVRO_NAME.match(field["name"])
    assert field["iceberg-field-name"] == column
    assert table.spec().fields[0].name == column
    rows = table.scan().to_arrow()
    assert sorted(rows[column].to_pylist(), key=str) == sorted(VALUES, key=str)


@pytest.mark.parametrize("column", NAMES)
def test_a_delta_table_has_its_files_in_folders_of_ascii_below_it(tmp_path: Path, column: str) -> None:
    location = str(tmp_path / "lake")
    files = write_table(location, "delta", column)
    # A folder that begins with `_` or `.` is none that vacuum looks into.
    assert all(
        re.fullmatch(r"[A-Za-z0-9-][A-Za-z0-9_.-]*=[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", file.path) for file in files
    )
    assert all(Path(location, file.path).resolve().is_relative_to(location) for file in files)
    rows = delta_client(location).to_pyarrow_table()
    assert sorted(rows[column].to_pylist(), key=str) == sorted(VALUES, key=str)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
LONG = st.builds(lambda text, times: text * times, TEXT, st.integers(1, 400))
COLUMNS_MAX = 9


@given(st.lists(st.tuples(LONG, LONG | st.none()), min_size=1, max_size=COLUMNS_MAX, unique_by=lambda part: part[0]))
@example([("a" * 300, "x" * 300)])
@example([("я" * 300, "я" * 300)] + [(f"{number}" * 300, "/" * 300) for number in range(COLUMNS_MAX - 1)])
def test_folders_of_buckets_are_no_longer_than_a_disk_and_a_key_in_s3_take(
    parts: list[tuple[str, str | None]],
) -> None:
    columns, key = zip(*parts, strict=True)
    for hive_names in (True, False):
        path = bucket_folder(columns, key, hive=hive_names)
        folders = path.split("/")
        assert len(folders) == len(columns)
        assert all(0 < len(folder.encode()) <= 255 for folder in folders)
        # Of 1,024 bytes the location of the table and the name of a file have the rest.
        assert len(path.encode()) <= 700


@given(LONG, LONG, st.integers(1, COLUMNS_MAX))
def test_folders_as_hive_names_them_keep_values_and_columns_apart(one: str, other: str, columns: int) -> None:
    bytes_max = folder_bytes_max(columns)
    assert (hive_folder("x", one, bytes_max) == hive_folder("x", other, bytes_max)) == (one == other)
    assert (hive_folder(one, "x", bytes_max) == hive_folder(other, "x", bytes_max)) == (one == other)


def test_a_column_whose_folder_has_no_room_for_a_value_is_refused(tmp_path: Path) -> None:
    table = {"location": str(tmp_path / "lake"), "format": "parquet"}
    fitting, longer = ({"type": "field", "field": "country", "column": "c" * length} for length in (228, 229))
    config(tmp_path, table=table, bucket=fitting)
    with pytest.raises(ValidationError, match="has 229 characters, and a folder has room for 228"):
        config(tmp_path, table=table, bucket=longer)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize("column", ["страна", "_x", ".x"])
def test_vacuum_finds_what_lies_in_the_folders_of_any_column(tmp_path: Path, column: str, form: str) -> None:
    location = str(tmp_path / "lake")
    write_table(location, form, column)
    orphan = stage(location, column, "DE")
    needed = NeededFiles(frozenset(), {})
    (found,) = unneeded_in_table(
        [Stored(orphan.path, orphan.bytes, NOW)], needed, NOW + timedelta(days=1), hidden=False
    )
    assert found.path == orphan.path


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20))
def test_a_folder_as_hive_names_it_is_one_segment_and_tells_the_value(column: str) -> None:
    folder = hive_folder(column, "DE")
    assert "/" not in folder
    assert folder not in (".", "..")
    assert hive_value(folder) == "DE"


def test_duckdb_finds_odd_values_of_a_parquet_tables_folders(tmp_path: Path) -> None:
    values = ["ä ö", "50%", "a=b", "日本", "\u2028", "../x", "e\u0301"]
    for number, value in zip(count(), values):
        folder = tmp_path / hive_folder("country", value)
        folder.mkdir()
        pq.write_table(pa.table({"id": [number]}), folder / "part.parquet")
    assert sorted(hive_readers.query(str(tmp_path), "id, country")) == list(zip(count(), values))


@pytest.fixture
def foreign(tmp_path: Path) -> Table:
    """A table that pyiceberg made and fills: its manifests have the letter as it is."""
    catalog = load_catalog("others", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace("lake")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "straße", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "straße"))
    table = catalog.create_table("lake.streets", schema, partition_spec=spec)
    for value in ("A", "B"):
        table.append(pa.table({"id": pa.array([1], pa.int64()), "straße": [value]}))
    assert [field["name"] for field in partition_fields(table)] == ["straße"]
    return table


def test_manifests_of_others_with_such_a_name_are_read_and_written_anew_with_a_safe_one(foreign: Table) -> None:
    writer = ManifestWriter(foreign, merge_from=2)
    listed = writer.write([], [])
    (merged,) = [path for path in writer.written if path != listed]
    with foreign.io.new_input(merged).open() as file:
        entries = reader(file)
        fields = json.loads(entries.metadata["avro.schema"])
        values = sorted(next(iter(entry["data_file"]["partition"].values())) for entry in entries)
    assert values == ["A", "B"]
    assert '"stra_xDFe"' in json.dumps(fields)


@pytest.mark.parametrize(
    "pipeline",
    [
        {"bucket": {"type": "field", "field": "a.b", "column": "a.b"}},
        {"columns": {"header_columns": {"a.b": "trace"}}},
    ],
)
def test_the_configuration_of_an_iceberg_table_names_no_column_with_a_dot(
    tmp_path: Path, pipeline: dict[str, Any]
) -> None:
    config(tmp_path, **pipeline)
    place = {"location": str(tmp_path / "lake" / "clicks"), "format": "iceberg"}
    with pytest.raises(ValidationError, match=r"instead of 'a\.b' use 'a_b'"):
        config(tmp_path, table=place, **pipeline)
