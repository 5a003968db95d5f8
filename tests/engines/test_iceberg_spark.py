"""Spark as another client of headrace's Iceberg tables: whatever it runs, no row is lost or doubled, or comes back."""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.audit.audit import audit
from headrace.writer.cli.maintain import table_adopt
from headrace.writer.core.errors import HeadraceError
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.support.local_driver import Driver
from tests.support.reverted_change import revert_change
from tests.support.sample_records import NOW
from tests.support.small_files import carry, compact_bucket, fill_table

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(600)]
OWN = 7  # version of the table's log before Spark comes
MERGE_ON_READ = (
    "ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
    "'write.merge.mode'='merge-on-read')"
)
REWRITE = "CALL r.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))"
WITHOUT_DELETED = "CALL r.system.rewrite_data_files(table => '{n}', options => map('delete-file-threshold', '1'))"
EXPIRE = (
    "CALL r.system.expire_snapshots(table => '{n}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
)
DELETE = "DELETE FROM {t} WHERE _offset < 5"
MERGE = "MERGE INTO {t} t USING (SELECT * FROM {t} WHERE _offset = 3) s ON t._offset = s._offset "
UPDATE = "UPDATE {t} SET note = 'x' WHERE _offset = 3"
THREE_MORE = "INSERT INTO {t} SELECT * FROM {t} LIMIT 3"
OLD = "CAST(null AS bigint)"
# Three rows go, one without an offset, or one of an offset that is to come, is new.
SWAP = (
    "MERGE INTO {t} t USING (SELECT *, _offset AS o FROM {t} WHERE _offset IN (5, 6, 7) UNION ALL SELECT id, at, note, "
    "_topic, _incarnation, _kafka_partition, NEW, _kafka_time, hour, -1 FROM {t} WHERE _offset = 8) s ON t._offset = "
    "s.o WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, at, note, _topic, _incarnation, _kafka_partition, "
    "_offset, _kafka_time, hour) VALUES (s.id, s.at, s.note, s._topic, s._incarnation, s._kafka_partition, s._offset, "
    "s._kafka_time, s.hour)"
)
PROVENANCE = "_topic, _incarnation, _kafka_partition, _offset, _kafka_time, hour"
UNPARTITIONED, PARTITIONED = (f"ALTER TABLE {{t}} {clause} PARTITION FIELD hour" for clause in ("DROP", "ADD"))
ADD_FIELD, DROP_FIELD = (f"ALTER TABLE {{t}} {clause} PARTITION FIELD bucket(4, id)" for clause in ("ADD", "DROP"))
UNSET = "ALTER TABLE {t} UNSET TBLPROPERTIES ('%s')"
Step = str | Callable[["Site"], None]


def at(url: str) -> dict[str, Any]:
    """Return the section of the configuration that names a REST catalog."""
    return {"catalog": {"type": "rest", "uri": url}}


@dataclass(frozen=True)
class Site:
    """A table with six commits of ten rows in one hour, and the Spark session of another client."""

    spark: Any
    driver: Driver
    name: str

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if callable(step):
                step(self)
            else:
                self.ask(step.format(t=f"r.{self.name}", n=self.name))

    def ask(self, sql: str) -> list[Any]:
        return [tuple(row) for row in self.spark.sql(sql).collect()]

    def offsets(self) -> list[int]:
        return [offset for (offset,) in self.ask(f"SELECT _offset FROM r.{self.name} ORDER BY 1")]

    def snapshots(self) -> list[int]:
        return [
            clause for (clause,) in self.ask(f"SELECT snapshot_id FROM r.{self.name}.snapshots ORDER BY committed_at")
        ]

    def restarted(self) -> Driver:
        root = Path(self.driver.lake).parents[1]
        catalog = self.driver.config.catalog
        assert catalog is not None
        driver = Driver(root, "iceberg", sections=at(str(catalog.uri)), table={"name": self.name})
        driver.start()
        return driver


def roll_back(site: Site) -> None:
    site.ask(f"CALL r.system.rollback_to_snapshot('{site.name}', {site.snapshots()[-3]})")


def roll_back_to_ours(site: Site) -> None:
    ((ours,),) = site.ask(f"SELECT parent_id FROM r.{site.name}.snapshots WHERE operation = 'overwrite'")
    site.ask(f"CALL r.system.rollback_to_snapshot('{site.name}', {ours})")


def roll_back_as_told(site: Site) -> None:
    """Run the statement of the refusal: a rewind leaves delete files."""
    with pytest.raises(ForeignChange, match="Roll the table back first") as refused:
        revert_change(site.driver, OWN)
    assert site.offsets() == list(range(60)), "the table is as it was"
    (call,) = re.findall(r"CALL …(system\.rollback_to_snapshot\(.*?\))", str(refused.value))
    site.ask(f"CALL r.{call}")


def cherry_pick(site: Site) -> None:
    site.run(["ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled'='true')"])
    site.spark.conf.set("spark.wap.id", "staged")
    site.run([THREE_MORE])
    site.spark.conf.unset("spark.wap.id")
    ((staged,),) = site.ask(f"SELECT snapshot_id FROM r.{site.name}.snapshots WHERE summary['wap.id'] = 'staged'")
    site.ask(f"CALL r.system.cherrypick_snapshot('{site.name}', {staged})")


def remove_orphans(site: Site) -> None:
    """Remove what no metadata names and is three days old; everything is made to look ten days old."""
    for file in Path(site.driver.lake).rglob("*"):
        os.utime(file, (time.time() - 864_000,) * 2)
    site.run(["CALL r.system.remove_orphan_files(table => '{n}')"])


def delete_by_equality(session: Any, name: str, below: int) -> None:
    """Delete the rows of a table in one partition whose `_offset` is lower, by a file of their values alone."""
    jvm, gateway = session._jvm, session._sc._gateway
    iceberg, column = jvm.org.apache.iceberg, jvm.java.util.Collections.singletonList("_offset")
    table = iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)
    schema, partition = table.schema().select(column), table.newScan().planFiles().iterator().next().file().partition()
    ids = gateway.new_array(jvm.int, 1)
    ids[0] = schema.findField("_offset").fieldId()
    factory = iceberg.data.GenericAppenderFactory(table.schema(), table.spec(), ids, schema, None)
    file = table.io().newOutputFile(table.locationProvider().newDataLocation("equality-deletes.parquet"))
    encrypted = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(file)
    writer = factory.newEqDeleteWriter(encrypted, iceberg.FileFormat.PARQUET, partition)
    lower = iceberg.expressions.Expressions.lessThan("_offset", below)
    for record in iceberg.data.IcebergGenerics.read(table).select(column).where(lower).build().iterator():
        writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


def accept(site: Site) -> None:
    table_adopt.run_accept(site.driver.config, "clicks", write=True, now=NOW)


def by_equality(site: Site) -> None:
    delete_by_equality(site.spark, f"r.{site.name}", 5)


def register(site: Site) -> None:
    metadata = max(Path(site.driver.lake, "metadata").glob("*.metadata.json"), key=lambda file: file.name)
    site.ask(f"CALL r.system.register_table(table => '{site.name}', metadata_file => '{metadata}')")


def give_back(site: Site) -> None:
    """Run the statement of the refusal."""
    with pytest.raises(ForeignChange) as refused:
        site.driver.table.snapshot()
    text = str(refused.value)
    site.run(["ALTER TABLE {t} " + text[text.index("SET TBLPROPERTIES") : text.rindex(")") + 1]])


GOES_ON: dict[str, tuple[Sequence[Step], int]] = {  # what Spark runs, and how many of the first rows are gone then
    "delete": ([DELETE], 5),
    "delete_of_a_file": (["DELETE FROM {t} WHERE _offset < 10"], 10),
    "delete_then_expire": ([DELETE, EXPIRE], 5),
    "delete_on_read_then_rewrite": ([MERGE_ON_READ, DELETE, WITHOUT_DELETED], 5),
    "merge_that_deletes": ([MERGE.replace("= 3", "< 2") + "WHEN MATCHED THEN DELETE"], 2),
    "insert_overwrite_of_fewer": (["INSERT OVERWRITE {t} SELECT * FROM {t} WHERE _offset >= 30"], 30),
    "two_deletes": ([DELETE, "DELETE FROM {t} WHERE _offset = 5"], 6),
    # Which values changed of rows that stay, no offset says.
    "merge_that_deletes_and_updates": (
        [MERGE.replace("= 3", "< 3") + "WHEN MATCHED AND s._offset = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET "
         "note = 'x'"], 1,
    ),
    "truncate": (["TRUNCATE TABLE {t}"], 60),
    "rewrite": ([REWRITE], 0),
    "rewrite_then_expire": ([REWRITE, EXPIRE], 0),
    "rewrite_manifests": (["CALL r.system.rewrite_manifests('{n}')"], 0),
    "expire": ([EXPIRE], 0),
    "remove_orphans": ([remove_orphans], 0),
    "set_property": (["ALTER TABLE {t} SET TBLPROPERTIES ('theirs'='1')"], 0),
    "set_version": (["ALTER TABLE {t} SET TBLPROPERTIES ('headrace.version'='2')"], 0),
    "unset_mapping": ([UNSET % "schema.name-mapping.default"], 0),
    "add_column": (["ALTER TABLE {t} ADD COLUMN more struct<a: int>"], 0),
    "widen_column": (["ALTER TABLE {t} ALTER COLUMN _incarnation TYPE bigint"], 0),
    "move_column": (["ALTER TABLE {t} ALTER COLUMN note FIRST"], 0),
    "comment_column": (["ALTER TABLE {t} ALTER COLUMN note COMMENT 'a note'"], 0),
    "write_ordered": (["ALTER TABLE {t} WRITE ORDERED BY id"], 0),
    "partitioned_and_back": (
        [UNPARTITIONED, REWRITE, PARTITIONED, REWRITE], 0,
    ),
    "branch": (["ALTER TABLE {t} CREATE BRANCH theirs", "INSERT INTO {t}.branch_theirs SELECT * FROM {t} LIMIT 3"], 0),
    "tag": (["ALTER TABLE {t} CREATE TAG theirs"], 0),
    "drop_our_tag": (["ALTER TABLE {t} DROP TAG headrace"], 0),
}  # fmt: skip
STOPS: dict[str, tuple[Sequence[Step], str, Sequence[Step] | None]] = {  # what it runs, the refusal, what answers it
    "insert": ([THREE_MORE], "ran INSERT", None),
    "update": ([UPDATE], "ran UPDATE", None),
    "update_on_read": ([MERGE_ON_READ, UPDATE], "ran OVERWRITE", [roll_back_as_told]),
    "merge_that_updates": ([MERGE + "WHEN MATCHED THEN UPDATE SET note = 'x'"], "ran UPDATE", None),
    "merge_of_a_row_without_offset": ([SWAP.replace("NEW", OLD)], "ran OVERWRITE", None),
    "merge_of_a_row_to_come": ([SWAP.replace("NEW", "CAST(60 AS bigint)")], "ran OVERWRITE", None),
    "merge_on_read_of_a_row": ([MERGE_ON_READ, SWAP.replace("NEW", OLD)], "ran OVERWRITE", [roll_back_to_ours]),
    "insert_overwrite": (
        ["INSERT OVERWRITE {t} SELECT id, at, 'x', " + PROVENANCE + " FROM {t}"], "ran UPDATE", None,
    ),
    "insert_overwrite_of_more": (
        ["INSERT OVERWRITE {t} SELECT * FROM {t} UNION ALL SELECT * FROM {t} WHERE _offset = 3"], "ran OVERWRITE", None,
    ),
    "rollback": ([roll_back], "ran ROLLBACK", None),
    "fast_forward": (
        ["ALTER TABLE {t} CREATE BRANCH theirs", "INSERT INTO {t}.branch_theirs SELECT * FROM {t} LIMIT 3",
         "CALL r.system.fast_forward('{n}', 'main', 'theirs')"], "ran INSERT", None,
    ),
    "cherry_pick": ([cherry_pick], "ran INSERT", None),
    "replace": (
        ["CREATE OR REPLACE TABLE {t} USING iceberg PARTITIONED BY (hour) AS SELECT * FROM {t} WHERE _offset < 30"],
        "ran REPLACE TABLE", None,
    ),
    "expire_of_our_snapshot": (
        ["ALTER TABLE {t} DROP TAG headrace", REWRITE, EXPIRE], "ran changes whose snapshots expired", [accept],
    ),
    "unset_version": ([UNSET % "headrace.version"], r"has no property headrace\.version", [give_back]),
    "unset_entry": ([UNSET % "headrace.entry"], r"has no property headrace\.entry", [give_back]),
    "unset_snapshot": ([UNSET % "headrace.snapshot"], r"has no property headrace\.snapshot", [give_back]),
    "drop": (["DROP TABLE {t}"], "dropped or renamed table", [register]),
    "rename": (
        ["ALTER TABLE {t} RENAME TO {n}2"], "dropped or renamed table", ["ALTER TABLE r.{n}2 RENAME TO {n}"],
    ),
    "drop_column": (["ALTER TABLE {t} DROP COLUMN note"], "column note was dropped or renamed", []),
    "rename_column": (
        ["ALTER TABLE {t} RENAME COLUMN note TO remark"], "column note was dropped or renamed",
        ["ALTER TABLE {t} RENAME COLUMN remark TO note"],
    ),
    "add_partition_field": (
        [ADD_FIELD], r"by identity\(hour\), bucket\[4\]\(id_bucket_4\) now",
        [DROP_FIELD],
    ),
    "drop_partition_field": (
        [UNPARTITIONED], "it is by nothing now", [PARTITIONED],
    ),
    "rows_of_another_partitioning": (
        [ADD_FIELD, REWRITE, DROP_FIELD],
        "wrote files of another partitioning", [REWRITE],
    ),
    "replace_by_another_partitioning": (
        ["CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT * FROM {t}"], "it is by nothing now", [],
    ),
    "format_version": (["ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')"], "format version 3", []),
}  # fmt: skip


@pytest.fixture(scope="module")
def session(spark: Any, iceberg_url: str) -> Any:
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": iceberg_url,
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.r{key}", value)
    return spark


@pytest.fixture
def site(request: pytest.FixtureRequest, session: Any, iceberg_url: str, tmp_path: Path) -> Site:
    name = f"{request.node.callspec.id}.clicks"
    return Site(session, fill_table(tmp_path, "iceberg", sections=at(iceberg_url), table={"name": name}), name)


def check(site: Site, driver: Driver, left: Sequence[int]) -> None:
    """Check that Spark finds these rows, each once, and that the account knows."""
    assert site.offsets() == list(left)
    for deep in (False, True):
        report = audit(driver.config, "clicks", since=None, deep=deep)
        assert report.adds_up, report.problems


@pytest.mark.parametrize("case", GOES_ON.values(), ids=GOES_ON)
def test_headrace_compacts_commits_and_starts_again_after_it(site: Site, case: tuple[Sequence[Step], int]) -> None:
    steps, gone = case
    site.run(steps)
    assert site.offsets() == list(range(gone, 60))
    compact_bucket(site.driver)
    assert site.offsets() == list(range(gone, 60)), "rows that were deleted do not come back"
    carry(site.driver, 6)
    driver = site.restarted()
    carry(driver, 7)
    compact_bucket(driver)
    check(site, driver, range(gone, 80) if gone < 60 else range(60, 80))
    taken = audit(driver.config, "clicks", since=None, deep=False).rows_taken
    assert taken == ({"DELETE": gone} if gone else {})


@pytest.mark.parametrize("case", STOPS.values(), ids=STOPS)
def test_headrace_stops_with_a_sentence_and_goes_on_after_what_that_says(
    site: Site, case: tuple[Sequence[Step], str, Sequence[Step] | None]
) -> None:
    steps, sentence, answer = case
    site.run(steps)
    with pytest.raises(ForeignChange, match=sentence) as refused:
        carry(site.driver, 6)
    assert refused.value.exit_code == 2
    with pytest.raises(HeadraceError) as refused_again:
        site.restarted()
    assert refused_again.value.exit_code == 2
    if answer == []:  # none but another table
        return
    site.run(answer or [])
    if "rewind" in str(refused.value) and answer != [accept]:
        assert revert_change(site.driver, OWN) == 0
    driver = site.restarted()
    carry(driver, 6)
    compact_bucket(driver)
    check(site, driver, range(70))


@pytest.mark.parametrize("deletion", [[MERGE_ON_READ, DELETE], [by_equality]], ids=["by_delete_files", "by_equality"])
def test_rows_of_delete_files_stay_away_until_they_are_written_out(site: Site, deletion: Sequence[Step]) -> None:
    site.run(deletion)
    carry(site.driver, 6)
    with pytest.raises(ForeignChange, match="by delete files") as refused:
        compact_bucket(site.driver)
    assert "delete-file-threshold" in str(refused.value)
    assert site.offsets() == list(range(5, 70))
    site.run([WITHOUT_DELETED])
    driver = site.restarted()
    compact_bucket(driver)
    carry(driver, 7)
    check(site, driver, range(5, 80))
