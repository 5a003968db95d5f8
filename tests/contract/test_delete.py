"""Rows go by their keys, from each format and from the dead letters; the account knows how many, none whose."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import duckdb
import fastavro
import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import DeletionReport, run_deletion
from headrace.writer.cli.main import app
from headrace.writer.core.errors import ConfigError, SchemaChanged
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion import dead_letter_deletion
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_deletion import RowDeletion
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from headrace.writer.table.log.operations.seals import Closing
from headrace.writer.table.log.snapshot import PipelineSnapshot
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, Schemas, event

HOUR = timedelta(hours=1)


@pytest.fixture
def driver(form: str, tmp_path: Path) -> Driver:
    """Thirty rows in three hours and six files, `id` is 0 to 9, thrice; letters that are too old, and broken ones."""
    new_driver = Driver(tmp_path, form)
    new_driver.start()
    for batch in range(2):
        values = {batch * 15 + n: event((batch * 15 + n) % 10, event_time=NOW - n % 3 * HOUR) for n in range(15)}
        new_driver.carry([log(values)], {0: batch * 15 + 15})
    old = {30 + n: event(n, event_time=NOW - timedelta(days=99)) for n in range(5)}
    new_driver.carry([log(old | {35: b"broken", 36: event(3)[:-1]})], {0: 37})
    return new_driver


def ids(driver: Driver) -> list[int]:
    return sorted(driver.table.rows().to_table(columns=["id"]).column("id").to_pylist())


def run(driver: Driver, text: str = "id = 3", *, write: bool = True) -> DeletionReport:
    return run_deletion(driver.config, DeletionRequest("clicks", where(text), NOW), driver.schemas, write=write)


def told(driver: Driver, text: str = "id = 3", *, write: bool = True) -> dict:
    return dict(run(driver, text, write=write).document())


@pytest.mark.parametrize("deep", [False, True])
def test_the_rows_go_the_others_stay_and_the_audit_adds_up(driver: Driver, deep: bool) -> None:
    expected = [n for n in ids(driver) if n != 3]
    report = told(driver)
    assert (report["table"]["rows"], sum(deletion["rows"] for deletion in report["table"]["deleted"])) == (3, 3)
    assert ids(driver) == expected
    assert report["dead_letters"] == {
        "dead_letters": 7,
        "undecodable": 2,
        "meant": 1,
        "version": report["dead_letters"]["version"],
    }
    seen = audit(driver.config, "clicks", since=None, deep=deep)
    assert seen.adds_up, seen.problems
    assert (seen.rows_taken, seen.dead_letters_taken) == ({"delete": 3}, {"delete": 1})
    driver.start()
    driver.carry([log({37: event(3)})], {0: 38})
    assert ids(driver) == sorted([*expected, 3]), "what comes later is kept"
    assert audit(driver.config, "clicks", since=None, deep=deep).adds_up


class Meanwhile(Schemas):
    """Schemas whose first look-up of an id lets something happen before."""

    def __init__(self, do: Callable[[], object], at: int = 2) -> None:
        super().__init__({1: EVENT, 2: EVENT}, [1])
        self._do, self._at, self._done = do, at, False

    def schema(self, schema_id: int) -> str:
        if schema_id == self._at and not self._done:
            self._done = True
            self._do()
        return super().schema(schema_id)


def unknown(root: Path, form: str) -> Driver:
    """Rows, and dead letters of a schema that is unknown yet; of each id one."""
    driver = Driver(root, form, limits={"max_failed_ratio": 1})
    driver.start()
    driver.carry([log({n: event(n, schema_id=1 + n % 2) for n in range(8)})], {0: 8})
    return driver


def check_gone(driver: Driver, gone: int) -> None:
    assert gone not in ids(driver)
    seen = audit(driver.config, "clicks", since=None, deep=True)
    assert seen.adds_up, seen.problems


def test_a_dead_letter_that_is_deleted_while_a_replay_decodes_it_does_not_become_a_row(
    tmp_path: Path, form: str
) -> None:
    driver = unknown(tmp_path, form)
    schemas = Schemas({1: EVENT, 2: EVENT}, [1])

    def delete() -> None:
        driver.schemas = schemas
        run(driver)

    DeadLetterReplay("clicks", driver.config, Meanwhile(delete)).run(Selection(), NOW)
    assert ids(driver) == [0, 1, 2, 4, 5, 6, 7]
    check_gone(driver, 3)


def test_a_dead_letter_that_a_replay_makes_a_row_while_it_is_deleted_goes_as_a_row(tmp_path: Path, form: str) -> None:
    driver = unknown(tmp_path, form)
    schemas = Schemas({1: EVENT, 2: EVENT}, [1])
    driver.schemas = Meanwhile(lambda: DeadLetterReplay("clicks", driver.config, schemas).run(Selection(), NOW), at=1)
    run(driver)
    check_gone(driver, 3)


def test_a_dead_letter_that_comes_while_others_are_searched_stays(tmp_path: Path, form: str) -> None:
    driver = unknown(tmp_path, form)
    schemas = Schemas({1: EVENT, 2: EVENT}, [1])
    side = driver.side(driver.dead_letters)
    pipeline = open_local_pipeline("clicks", driver.config, schemas, forgives=True)
    keys = where("id = 3")

    def find(*snapshot: PipelineSnapshot) -> dead_letter_deletion.DeadLetters:
        driver.carry([log({8: event(3, schema_id=2)})], {0: 9})
        driver.tables.apply_side_files()
        return dead_letter_deletion.find(side, pipeline, keys, driver.table.snapshot().columns(), *snapshot)

    assert dead_letter_deletion.delete(driver.tables, side, find, keys, NOW, "r").meant == 1
    assert side.rows().count_rows() == 4
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_late_rows_in_their_table_go_too(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form, seal={"late": "late_table"})
    driver.start()
    driver.carry([log({n: event(n % 5) for n in range(10)})], {0: 10})
    driver.table.append(Closing("c", NOW + timedelta(days=1), {"reason": "command"}), driver.table.snapshot())
    driver.carry([log({n: event(n % 5) for n in range(10, 20)})], {0: 20})
    assert told(driver, write=False)["late_table"]["rows"] == 2
    report = told(driver)
    assert (report["table"]["rows"], report["late_table"]["rows"]) == (2, 2)
    seen = audit(driver.config, "clicks", since=None, deep=True)
    assert seen.adds_up, seen.problems
    assert (seen.rows_taken, seen.late_taken) == ({"delete": 2}, {"delete": 2})
    assert told(driver)["late_table"]["rows"] == 0


def test_a_second_time_nothing_is_found(driver: Driver) -> None:
    run(driver)
    version = driver.table.snapshot().version
    again = told(driver)
    assert (again["table"]["rows"], again["table"]["deleted"], again["dead_letters"]["meant"]) == (0, [], 0)
    assert driver.table.snapshot().version == version


def test_a_dry_run_counts_and_changes_nothing(driver: Driver) -> None:
    version, before = driver.table.snapshot().version, ids(driver)
    report = told(driver, write=False)
    assert (report["table"]["rows"], report["table"]["deleted"], report["dead_letters"]["meant"]) == (3, [], 1)
    assert (driver.table.snapshot().version, ids(driver)) == (version, before)


def test_files_that_cannot_hold_the_key_are_not_read(driver: Driver) -> None:
    rule = driver.settings.event_time.rule("auto")
    work = RowDeletion(driver.table, where("id = 77"), driver.columns, rule, 2**20, request="r")
    looked = work.look()
    assert (looked.files, looked.candidates, looked.rows) == (6, 0, 0)


def test_a_file_of_which_no_row_stays_is_not_written_anew(driver: Driver) -> None:
    everyone = f"id IN ({', '.join(map(str, range(10)))})"
    run(driver, everyone)
    assert ids(driver) == []
    assert driver.table.bucket_files(driver.table.snapshot()) == []
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_no_log_ledger_or_new_file_names_the_keys_of_rows_that_went(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form)
    driver.start()
    driver.carry([log({n: event(n) for n in range(5)})], {0: 5})
    before = set(Path(driver.lake).rglob("*"))
    report = told(driver, "note = 'note 3'")
    assert report["table"]["rows"] == 1
    new = [path for path in set(Path(driver.lake).rglob("*")) - before if path.is_file()]
    assert len(new) == (2 if form == "delta" else 6), "an entry and a file; of Iceberg also what the catalog names"
    assert all(b"note 3" not in content(path) for path in new)
    entry = next(path for path in new if path.stem.isdigit()).read_text()
    about = json.loads(json.loads(entry.splitlines()[0])["commitInfo"]["headrace"])
    assert (about["taken"], about["fields"], about["keys"]) == ({"why": "delete", "rows": 1}, ["note"], 1)


def content(path: Path) -> bytes:
    """Return what a file says; the Avro of manifests is compressed."""
    if path.suffix != ".avro":
        return path.read_bytes()
    with path.open("rb") as file:
        return repr(list(fastavro.reader(file))).encode()


def test_event_times_and_statistics_of_what_is_left_are_true(driver: Driver) -> None:
    before = {file.bucket: file for file in driver.table.bucket_files(driver.table.snapshot())}
    run(driver)
    for file in driver.table.bucket_files(driver.table.snapshot()):
        assert file.event_time_min == before[file.bucket].event_time_min
        ((rows,),) = duckdb.sql(f"SELECT count(*) FROM '{driver.lake}/{file.path}'").fetchall()
        assert rows == file.rows


def test_a_delete_may_die_after_any_bucket_and_is_run_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, left = [n for n in ids(driver) if n != 3], [1]
    honest = driver.table.append

    class Died(SchemaChanged):
        """The log refuses the entry of the second bucket, and the command ends."""

    def dies(self, *given):
        if not left[0]:
            raise Died
        left[0] -= 1
        return honest.__func__(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr("headrace.writer.table.table.PipelineTable.append", dies)
        with pytest.raises(Died):
            run(driver)
    assert audit(driver.config, "clicks", since=None, deep=True).rows_taken == {"delete": 1}
    staged = list(Path(driver.lake).rglob("*.staged"))
    assert staged == [], "what was staged for the second bucket is gone"
    run(driver)
    assert ids(driver) == expected
    assert audit(driver.config, "clicks", since=None, deep=True).rows_taken == {"delete": 3}


def test_a_bucket_that_is_rewritten_meanwhile_is_looked_at_again(driver: Driver) -> None:
    expected, table = [n for n in ids(driver) if n != 3], driver.table
    rule = driver.settings.event_time.rule("auto")
    work = RowDeletion(table, where("id = 3"), driver.columns, rule, 2**20, request="r")
    done = []
    for deletion in work.run(NOW):
        done.append(deletion)
        if len(done) == 1:  # somebody drops a file of a bucket that is still to come
            looked = work.look()
            (hit, *_) = looked.hits
            gone = [row["id"] for row in _rows(driver, hit.file.path)]
            table.append(Rewrite("other", [hit.file], (), RemovedRows("retention", len(gone))), table.snapshot())
            for n in gone:
                if n != 3:
                    expected.remove(n)
    assert ids(driver) == expected
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def _rows(driver: Driver, path: str) -> list[dict]:
    return duckdb.sql(f"SELECT id FROM '{driver.lake}/{path}'").to_arrow_table().to_pylist()


def test_a_column_that_is_not_there_is_refused_before_anything_is_read(driver: Driver) -> None:
    with pytest.raises(ConfigError, match="field 'user' is not in the table"):
        run(driver, "user = 3")


def test_dead_letters_of_an_unknown_schema_are_counted_and_kept(driver: Driver) -> None:
    driver.carry([log({37: b"\0\0\0\0\x09" + event(3)[5:]})], {0: 38})
    report = told(driver)
    assert (report["dead_letters"]["undecodable"], report["dead_letters"]["meant"]) == (3, 1)
    again = told(driver)
    assert (again["dead_letters"]["dead_letters"], again["dead_letters"]["undecodable"]) == (7, 3)


def test_the_verb_says_what_is_left_and_where(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(driver.lake).parents[1] / "headrace.yaml"
    path.write_text(yaml.safe_dump(driver.config.model_dump(mode="json", exclude_unset=True)))
    monkeypatch.setenv("COLUMNS", "100")

    def said(*flags: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["delete-rows", str(path), *flags])
        assert result.exit_code == code, result.output
        return " ".join(result.stdout.split())

    text = said("--where", "id = 3", "--no-dead-letters", "--yes")
    assert "clicks: 3 rows with 1 value of id, in 3 files of 3 buckets. Of 6 files, 6 could hold some" in text
    assert text.count(" hour=2026-11-20T") == 3, "a line for each bucket"
    assert "Dead letters were not looked at." in text
    assert "Kafka keeps the records until its own retention" in text
    keys = path.parent / "keys.csv"
    keys.write_text("user\n4\n5\n")
    assert "6 rows with 2 values of id" in said(
        "--keys", str(keys), "--column", "id", "--file-column", "user", "--no-dead-letters", "--dry-run"
    )
    result = CliRunner().invoke(app, ["delete-rows", str(path), "--keys", str(keys)])
    assert "either --where, or --keys with --column" in str(result.exception)
