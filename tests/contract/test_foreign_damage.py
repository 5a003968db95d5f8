"""Damage of a file that another client wrote is a sentence that names the file, whichever file and whatever damage."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace.writer.audit.audit import audit
from headrace.writer.core.errors import HeadraceError
from headrace.writer.storage.damage import FileDamaged, naming_damage
from headrace.writer.table.iceberg.foreign_snapshots import group_by_commit
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.support.iceberg_clients import client_table
from tests.support.iceberg_transactions import upsert
from tests.support.local_driver import Driver
from tests.support.small_files import carry, compact_bucket, fill_table

Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "empty": lambda _: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "without its end": lambda content: content[:-3],
    "without its beginning": lambda content: content[7:],
    "zeros in the middle": lambda content: (
        content[: len(content) // 3] + bytes(600) + content[len(content) // 3 + 600 :]
    ),
    "ones": lambda content: b"\xff" * len(content),
    "text": lambda _: b"Access is possible again from Monday on.\n",
}
# Lines that are JSON and no actions of the protocol.
LINES = [
    "5", "[]", '"add"', "null", "[" * 5_000 + "]" * 5_000, '{"add": 5}', '{"add": {}}', '{"add": {"path": "a"}}',
    '{"add": {"path": 5, "size": 1, "partitionValues": {}}}',
    '{"add": {"path": "a", "size": "1", "partitionValues": {}}}',
    '{"add": {"path": "a", "size": 1, "partitionValues": []}}',
    '{"add": {"path": "a", "size": 1, "partitionValues": {}, "stats": "{"}}',
    '{"add": {"path": "a", "size": 1, "partitionValues": {}, "stats": "[1]"}}',
    '{"add": {"path": "a", "size": 1, "partitionValues": {}, "stats": "{\\"minValues\\": 3}"}}',
    '{"add": {"path": "a", "size": 1, "partitionValues": {}, "stats": "{\\"numRecords\\": \\"x\\"}"}}',
    '{"add": {"path": "a", "size": 1, "partitionValues": {}, "tags": {"headrace.event_time_min": "soon"}}}',
    '{"remove": {}}', '{"remove": []}', '{"txn": {"appId": "a"}}', '{"txn": {"version": 1}}', '{"txn": "x"}',
    '{"protocol": {}}', '{"protocol": {"minReaderVersion": "1", "minWriterVersion": 2}}', '{"metaData": {"id": "x"}}',
    '{"metaData": {"id": "x", "schemaString": "{}", "partitionColumns": []}}',
    '{"metaData": {"id": "x", "schemaString": "no", "partitionColumns": []}}', '{"commitInfo": "DELETE"}',
    '{"commitInfo": {"operation": 5}}', '{"commitInfo": {"timestamp": "yesterday"}}',
]  # fmt: skip


def damage_file(path: Path, damage: Damage) -> None:
    path.write_bytes(damage(path.read_bytes()))


def refusals(driver: Driver) -> Iterator[str]:
    """Yield what a batch, a start and an audit say."""
    for work in (
        lambda: carry(driver, 6),
        lambda: Driver(Path(driver.lake).parents[1], driver.settings.table.format).start(),
        lambda: audit(driver.config, "clicks", since=None, deep=True),
    ):
        with pytest.raises(HeadraceError) as refused:
            work()
        yield str(refused.value)


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.name)


@pytest.fixture
def delta(tmp_path: Path) -> Driver:
    """A Delta table of three commits, of which another client deleted a row."""
    driver = fill_table(tmp_path, "delta", commits=3)
    DeltaTable(driver.lake).delete("_offset = 3")
    return driver


@pytest.mark.parametrize("damage", [*DAMAGES.values()][1:], ids=[*DAMAGES][1:])
def test_a_damaged_entry_of_a_log_is_named(delta: Driver, damage: Damage) -> None:
    entry = newest(Path(delta.lake, "_delta_log"), "*.json")
    damage_file(entry, damage)
    for refusal in refusals(delta):
        assert entry.name in refusal


def test_an_entry_whose_lines_are_no_actions_is_named(delta: Driver) -> None:
    entry = newest(Path(delta.lake, "_delta_log"), "*.json")
    for line in LINES:
        entry.write_text(f'{{"commitInfo": {{"operation": "DELETE"}}}}\n{line}\n')
        with pytest.raises(HeadraceError) as refused:
            carry(delta, 6)
        assert entry.name in str(refused.value), line
        with pytest.raises(HeadraceError, match=entry.name):
            Driver(Path(delta.lake).parents[1]).start()


# Pages of Parquet need no checksum: zeros in the middle of one may be values.
WHOLE = [name for name in DAMAGES if name != "zeros in the middle"]


@pytest.mark.parametrize("damage", [DAMAGES[name] for name in WHOLE], ids=WHOLE)
def test_a_damaged_checkpoint_is_passed_over_while_entries_lead_there_and_else_named(
    delta: Driver, damage: Damage
) -> None:
    DeltaTable(delta.lake).create_checkpoint()
    log = Path(delta.lake, "_delta_log")
    checkpoint = newest(log, "*.checkpoint.parquet")
    damage_file(checkpoint, damage)
    driver = Driver(Path(delta.lake).parents[1])
    driver.start()
    carry(driver, 3)
    assert sum(file.rows or 0 for file in driver.table.bucket_files(driver.table.snapshot())) == 39
    with pytest.raises(HeadraceError, match=checkpoint.name):
        # What delta-rs reads for other engines goes by the checkpoint.
        driver.table.rows()
    (log / "00000000000000000000.json").unlink()
    for entry in log.glob("0000000000000000000[1-3].json"):
        entry.unlink()
    with pytest.raises(HeadraceError, match=checkpoint.name):
        # Of a checkpoint that is damaged in part, a start may read all that it needs.
        Driver(Path(delta.lake).parents[1]).table.bucket_files(driver.table.snapshot())


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_data_file_is_named(tmp_path: Path, form: str, damage: Damage) -> None:
    driver = fill_table(tmp_path, form, commits=3)
    files = set(Path(driver.lake).rglob("*.parquet"))
    if form == "delta":
        DeltaTable(driver.lake).delete("_offset = 3")
    else:
        client_table(driver).delete("_offset = 3")
    (file,) = set(Path(driver.lake).rglob("*.parquet")) - files
    damage_file(file, damage)
    for work in (lambda: compact_bucket(driver), lambda: audit(driver.config, "clicks", since=None, deep=True)):
        with pytest.raises((HeadraceError, FileDamaged, OSError)) as refused:
            work()
        assert file.name in str(refused.value), refused.value


@pytest.fixture
def iceberg(tmp_path: Path) -> Driver:
    """An Iceberg table of three commits, after an upsert of another client."""
    driver = fill_table(tmp_path, "iceberg", commits=3)
    upsert(client_table(driver))
    return driver


def metadata_files(driver: Driver) -> dict[str, Path]:
    """Return the metadata file, the list of manifests and a manifest of another client's newest snapshot."""
    table = client_table(driver)
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    (manifest,) = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id][:1]
    files = {"metadata": table.metadata_location, "list": snapshot.manifest_list, "manifest": manifest.manifest_path}
    return {kind: Path(path.removeprefix("file://")) for kind, path in files.items()}


@pytest.mark.parametrize("kind", ["metadata", "list", "manifest"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_metadata_of_iceberg_is_named(iceberg: Driver, kind: str, damage: Damage) -> None:
    path = metadata_files(iceberg)[kind]
    damage_file(path, damage)
    for refusal in refusals(iceberg):
        assert path.name in refusal


@pytest.mark.parametrize("key", ["location", "schemas", "format-version"])
def test_metadata_of_iceberg_without_a_key_is_named(iceberg: Driver, key: str) -> None:
    path = metadata_files(iceberg)["metadata"]
    metadata = json.loads(path.read_text())
    del metadata[key]
    path.write_text(json.dumps(metadata))
    for refusal in refusals(iceberg):
        assert path.name in refusal


def gzip_log(driver: Driver, damage: Damage) -> None:
    """Let the newest earlier metadata file be a gzip file, as some clients write them, and damage it."""
    current = metadata_files(driver)["metadata"]
    metadata = json.loads(current.read_text())
    entry = metadata["metadata-log"][-1]
    earlier = Path(entry["metadata-file"].removeprefix("file://"))
    compressed = earlier.with_name(earlier.name.replace(".metadata.json", ".gz.metadata.json"))
    compressed.write_bytes(damage(gzip.compress(earlier.read_bytes())))
    entry["metadata-file"] = str(compressed)
    current.write_text(json.dumps(metadata))


@pytest.mark.parametrize("damage", [lambda content: content, *DAMAGES.values()], ids=["none", *DAMAGES])
def test_an_earlier_metadata_file_that_is_damaged_parts_no_commits(iceberg: Driver, damage: Damage) -> None:
    gzip_log(iceberg, damage)
    with pytest.raises(ForeignChange) as refused:
        carry(iceberg, 6)
    is_sound = damage(b"12345678") == b"12345678"
    assert ("metadata files are gone" in str(refused.value)) != is_sound, refused.value


class ForbiddenIO(PyArrowFileIO):
    """Reads what a table's owner may read: the metadata file that another client's commit replaced is none of it."""

    forbidden: tuple[str, ...] = ()

    def new_input(self, location: str) -> Any:
        if location.endswith(self.forbidden):
            raise PermissionError(f"Cannot open file, access denied: {location}")
        opened: InputFile = super().new_input(location)
        return opened


def test_a_metadata_file_that_may_not_be_read_is_named_with_the_fix(iceberg: Driver) -> None:
    table = client_table(iceberg)
    table.io = ForbiddenIO(table.io.properties)
    earlier = [entry.metadata_file for entry in table.metadata.metadata_log]
    table.io.forbidden = tuple(earlier[-1:])
    with pytest.raises(OSError, match=r"cannot read .*metadata\.json.*Let the credentials of the table's files read"):
        group_by_commit(table, table.metadata.snapshots[-2:], table.metadata.snapshots[-3].snapshot_id)


def test_only_what_a_parser_raises_is_damage() -> None:
    def fail(error: Exception) -> None:
        with naming_damage("/lake/file", "a file"):
            raise error

    for damage in (ValueError("odd"), KeyError("k"), EOFError(), RecursionError("deep"), gzip.BadGzipFile("no gzip")):
        with pytest.raises(FileDamaged, match=r"^/lake/file is damaged, or is not a file"):
            fail(damage)
    no_damage = [
        FileNotFoundError(2, "gone"),
        PermissionError(13, "no"),
        HeadraceError("said"),
        MemoryError("full"),
        pa.ArrowMemoryError("malloc of size 64 failed"),
    ]
    for error in no_damage:
        with pytest.raises(type(error), match=str(error.args[-1])) as raised:
            fail(error)
        assert raised.value is error
    with pytest.raises(OSError, match=r"^cannot read /lake/file: the bucket is away"):
        fail(OSError("the bucket is away"))
