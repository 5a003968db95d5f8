"""Protected values stand in no place beside the table either: bounds, dead letters, raw records, screens."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headrace.recovery.backfill import source_factory
from headrace.recovery.backfill.fill_gaps import BackfillRequest, fill_gaps
from headrace.recovery.backfill.source import SourceFailed
from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix import dlq
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.cli.main import app
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.preflight.samples import preview
from headrace.writer.privacy.keyring import read_keyring, write_keyring
from headrace.writer.privacy.record_sealing import HIDDEN
from tests.support.backfill_gaps import Silent, skip_offsets
from tests.support.local_driver import Driver, log
from tests.support.private_table import (
    PRIVACY,
    TAGGED,
    event,
    hash_of,
    ids_of,
    keyring_at,
    start_driver,
    write_config_file,
)
from tests.support.sample_records import NOW, WIDER, Schemas, value

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])


def bounded(root: Path) -> set[str]:
    """Return the columns with a least or largest value in a footer or a log below a folder."""
    columns_with_bounds = set[str]()
    for path in root.rglob("*.parquet"):
        footer = pq.read_metadata(path)
        for group in (footer.row_group(g) for g in range(footer.num_row_groups)):
            columns = (group.column(i) for i in range(footer.num_columns))
            columns_with_bounds |= {c.path_in_schema for c in columns if c.is_stats_set and c.statistics.has_min_max}
    for path in (root / "_delta_log").glob("*.json"):
        for line in path.read_text().splitlines():
            stats = json.loads(json.loads(line).get("add", {}).get("stats") or "{}")
            columns_with_bounds |= {*stats.get("minValues", ()), *stats.get("nullCount", ())}
    return columns_with_bounds


@FORMATS
def test_protected_columns_have_no_bounds_also_after_compaction(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form=form, table={"name": "s.clicks"} if form == "iceberg" else {})
    for offset in range(3):
        driver.carry([log({offset: event(offset)})], {0: offset + 1})
    root = Path(driver.lake)
    assert {"at", "_offset"} <= bounded(root)
    assert not {"id", "note"} & bounded(root)
    compactor = Compactor("clicks", driver.settings, driver.table, driver.config.stores)
    snapshot = driver.table.snapshot()
    before = {path.name for path in root.rglob("*.parquet")}
    buckets = list({file.bucket for file in driver.table.bucket_files(snapshot)})
    planned = compactor.plan(snapshot, buckets, open_too=True)
    assert [done for pieces in planned.values() for done in compactor.carry_out(snapshot, pieces, here)]
    assert {path.name for path in root.rglob("*.parquet")} - before, "there is a file that compaction wrote"
    assert not {"id", "note"} & bounded(root)


def letters(driver: Driver) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = driver.side(driver.dead_letters).rows().to_table().sort_by("_offset").to_pylist()
    return rows


def test_dead_letters_are_encrypted_and_replayed(tmp_path: Path) -> None:
    driver = start_driver(tmp_path, Schemas({1: TAGGED}, [1]), limits={"max_failed_ratio": 1})
    keys = dict.fromkeys(range(3), b"maria")
    driver.carry([log({0: event(0, TAGGED, 9), 1: event(1, TAGGED, 9), 2: b"\0\0\0\0\1!"}, keys=keys)], {0: 3})
    for letter in letters(driver):
        assert letter["value"].startswith(b"hr1.k1.")
        assert letter["key"].startswith(b"hr1.k1.")
    later = Schemas({1: TAGGED, 9: TAGGED}, [1])
    assert DeadLetterReplay("clicks", driver.config, later).run(Selection(), NOW).rows == 2
    assert ids_of(driver) == {hash_of(tmp_path, 0), hash_of(tmp_path, 1)}
    (left,) = letters(driver)
    assert left["value"].startswith(b"hr1.k1."), "what fails again is encrypted again"
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_redacted_dead_letters_have_no_bytes_and_are_left_by_a_replay(tmp_path: Path) -> None:
    driver = start_driver(tmp_path, privacy={**PRIVACY, "dead_letters": "redact"}, limits={"max_failed_ratio": 1})
    driver.carry([log({0: event(0, TAGGED, 9), 1: event(1)})], {0: 2})
    (letter,) = letters(driver)
    assert (letter["key"], letter["value"], letter["schema_id"]) == (None, None, 9)
    later = Schemas({1: TAGGED, 9: TAGGED}, [1])
    done = DeadLetterReplay("clicks", driver.config, later).run(Selection(), NOW)
    assert (done.chosen, done.rows) == (0, 0)
    assert len(letters(driver)) == 1


def test_a_raw_table_is_encrypted_and_a_backfill_reads_it(tmp_path: Path) -> None:
    locations = {"location": str(tmp_path / "before"), "raw": str(tmp_path / "raw")}
    before = start_driver(tmp_path, table=locations)
    before.carry([log({offset: event(offset) for offset in range(6)}, headers={1: {"who": b"maria"}})], {0: 6})
    rows = before.side(locations["raw"]).rows().to_table().sort_by("_offset").to_pylist()
    assert all(row["value"].startswith(b"hr1.k1.") and row["key"].startswith(b"hr1.k1.") for row in rows)
    assert rows[1]["headers"][0]["value"].startswith(b"hr1.k1.")
    assert rows[1]["headers"][0]["key"].startswith("hr1.k1.")
    driver = start_driver(tmp_path)
    skip_offsets(driver, 6)
    driver = start_driver(tmp_path)
    filling = RecordTable("clicks", driver.config, driver.schemas)
    fill_gaps(filling, lambda _: [source_factory.raw(filling, locations["raw"])], BackfillRequest(by="ann"), Silent())
    assert ids_of(driver) == {hash_of(tmp_path, offset) for offset in range(6)}


def test_raw_records_whose_key_is_lost_stop_a_backfill_and_are_no_dead_letters(tmp_path: Path) -> None:
    locations = {"location": str(tmp_path / "before"), "raw": str(tmp_path / "raw")}
    before = start_driver(tmp_path, table=locations)
    before.carry([log({offset: event(offset) for offset in range(6)})], {0: 6})
    driver = start_driver(tmp_path / "other")  # its keyring has another key of that id
    skip_offsets(driver, 6)
    driver = start_driver(tmp_path / "other")
    filling = RecordTable("clicks", driver.config, driver.schemas)
    with pytest.raises(SourceFailed, match=r"encrypted with key k1, which the keyring \(keys\) has not"):
        fill_gaps(
            filling, lambda _: [source_factory.raw(filling, locations["raw"])], BackfillRequest(by="ann"), Silent()
        )
    assert (letters(driver), ids_of(driver)) == ([], set())


def test_screens_show_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Schemas({1: TAGGED, 9: WIDER}, [1])
    driver = start_driver(tmp_path, Schemas({1: TAGGED}, [1]), limits={"max_failed_ratio": 1})
    secret = {"id": 4711, "at": NOW, "note": "maria@example.org", "extra": 1}
    driver.carry([log({0: value(9, WIDER, secret)}, keys={0: b"maria"})], {0: 1})
    monkeypatch.setattr(dlq, "source", lambda _: later)
    file = write_config_file(driver.config, tmp_path)
    for options in ([], ["--values"], ["--values", "--json"]):
        result = CliRunner().invoke(app, ["dlq", "show", file, *options])
        assert result.exit_code == 0, result.exception
        assert not re.search("maria|4711", result.output)
        assert (HIDDEN.hex() if "--json" in options else HIDDEN.decode()) in result.output


def test_live_records_and_previews_show_what_is_left(tmp_path: Path) -> None:
    driver = start_driver(tmp_path)
    batch = log({0: event(4711)}, keys={0: b"maria"})
    local_pipeline = open_local_pipeline("clicks", driver.config, driver.schemas)
    for step, opened_at in (("raw", None), ("decoded", local_pipeline), ("assigned", local_pipeline)):
        text = repr(preview._describe(driver.config, "clicks", step, batch, opened_at, NOW))
        assert not re.search("maria|4711|" + event(4711).hex(), text)
        assert HIDDEN.decode() in text


def test_rows_are_deleted_by_values_that_are_hashed_by_any_key(tmp_path: Path) -> None:
    driver = start_driver(tmp_path, Schemas({1: TAGGED}, [1]), limits={"max_failed_ratio": 1})
    driver.carry([log({0: event(42), 1: event(43), 2: event(42, TAGGED, 9), 3: event(7)})], {0: 4})
    source = keyring_at(tmp_path)
    write_keyring(source, read_keyring(source).with_new("hash"))
    CliRunner().invoke(app, ["keys", "rotate", write_config_file(driver.config, tmp_path), "--break-joins", "--yes"])
    driver = start_driver(tmp_path)
    driver.carry([log({4: event(42)})], {0: 5})
    schemas = Schemas({1: TAGGED, 9: TAGGED}, [1])
    report = run_deletion(driver.config, DeletionRequest("clicks", where("id = 42"), NOW), schemas, write=True)
    assert report.dead_letters is not None
    assert (report.table.rows, report.dead_letters.meant) == (2, 1)
    assert driver.table.rows().count_rows() == 2
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    encrypted = start_driver(tmp_path / "other", privacy={**PRIVACY, "fields": {"note": "encrypt"}})
    with pytest.raises(ConfigError, match="column 'note' has the policy encrypt: its values cannot be compared"):
        run_deletion(
            encrypted.config,
            DeletionRequest("clicks", where("note = 'x'"), NOW, with_dead_letters=False),
            schemas,
            write=False,
        )


def test_no_row_is_looked_for_by_a_column_that_a_tag_encrypts(tmp_path: Path) -> None:
    """It would find none, which reads as if the person had no rows."""
    driver = start_driver(tmp_path, specs={"Event": {"rename": {"note": "said"}}})
    driver.carry([log({0: event(42)})], {0: 1})
    for column, is_shown in (("note", False), ("said", True)):
        message = "column 'said' has the policy encrypt: its values" if is_shown else "note"
        with pytest.raises(ConfigError, match=message):
            run_deletion(
                driver.config,
                DeletionRequest("clicks", where(f"{column} = 'note 42'"), NOW, with_dead_letters=False),
                Schemas({1: TAGGED}, [1]),
                write=False,
            )
