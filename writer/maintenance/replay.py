"""Replays dead letters: decodes them again with today's code and schemas, and commits the rows exactly once.

A replay is one commit of the main table: the rows, and the offsets whose dead letters go. Redo takes the dead letters
out of their table, as it adds those of any commit. So it may die anywhere, be run again, and run beside the writer: it
moves no frontier and raises no epoch. Two replays cannot both commit on the same dead letters, as each counts the
replays up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from writer.avro.schema_plan import PROVENANCE
from writer.batch.dead_letters import DEAD_LETTERS
from writer.batch.staging.parquet_files import open_file
from writer.batch.task_report import Report
from writer.commit import builder
from writer.commit.event_specs import check_version
from writer.commit.privacy import RecordedPrivacy, check_policies
from writer.config.pipelines import Config
from writer.core.files import StagedFile
from writer.core.offsets import Span, TopicPartition, merge_spans
from writer.maintenance.dead_letters import Selection, as_read, places, read
from writer.maintenance.local_pipeline import LocalPipeline, Piece, opened
from writer.privacy.protected_schema import Privacy
from writer.schemas.registry import SchemaSource
from writer.table.factory import all_tables
from writer.table.log.foreign_writes import Overtaken, PrivacyChanged
from writer.table.log.operations import Replay

DEAD_LETTERS_AT_ONCE = 50_000  # of one commit, which names their offsets
BYTES_AT_ONCE = 64 * 2**20
_TRIES = 10  # of a commit that other replays overtake


@dataclass
class ReplayResult:
    """What became of the chosen dead letters."""

    chosen: int = 0
    rows: int = 0
    filtered: int = 0  # that a spec leaves out by now
    failed: dict[tuple[str, int | None, str], int] = field(default_factory=dict)  # (outcome, schema id, reason)
    versions: list[int] = field(default_factory=list)  # of the main table


class Replaying:
    """A replay of one pipeline's dead letters."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource) -> None:
        """Open the tables. Raises HeadraceError when there are none."""
        self._settings = config.pipelines[name]
        self._name, self._config, self._source = name, config, schemas
        self._tables = all_tables(name, config)
        self._main, self._dead_letters = self._tables.main, self._tables.side(self._settings.dead_letters)
        self._walk: LocalPipeline | None = None
        self._privacy: Privacy | None = None
        self._older = timedelta(0)
        self._main.check_exists()
        self._dead_letters.check_exists()

    def run(self, selection: Selection, now: datetime, older: timedelta = timedelta(0)) -> ReplayResult:
        """Replay the chosen dead letters, commit by commit. Raises what a commit raises; what is committed stays.

        `older`: how long ago the broker had them; event times that were believable then are believed.
        """
        self._older = older
        done = ReplayResult()
        tried: dict[TopicPartition, list[Span]] = {}
        walk = self._opened()
        tries = 0
        while True:
            generation = self._settled()
            try:
                dead_letters = self._some(selection, tried)
                if dead_letters.num_rows == 0:
                    return done
                self._replay(walk, dead_letters, generation, now, done)
                tries = 0
            except Overtaken as error:
                tries += 1
                if tries == _TRIES:
                    raise
                if isinstance(error, PrivacyChanged):
                    walk = self._opened()
                continue
            for part, spans in places(dead_letters).items():
                tried[part] = merge_spans([*tried.get(part, []), *spans])

    def _opened(self) -> LocalPipeline:
        """Open the pipeline, with what its table's log has of privacy by now."""
        walk = self._walk = opened(self._name, self._config, self._source, tables=self._tables)
        self._privacy = walk.plan.privacy
        walk.assume_wires()
        return walk

    def _settled(self) -> int:
        """Apply side files. Returns the number of replays that the dead-letter table has seen then.

        Raises ConfigError where the writer was started with other event specs meanwhile.
        """
        snapshot = self._main.snapshot()
        check_version(self._name, self._settings, snapshot.specs_fingerprint)
        check_policies(self._name, self._settings, self._privacy, RecordedPrivacy.of(snapshot))
        self._tables.apply_side_files()
        return snapshot.replays

    def _some(self, selection: Selection, tried: Mapping[TopicPartition, Sequence[Span]]) -> pa.Table:
        """Read the next of the chosen dead letters that were not tried yet: as many as one commit carries."""
        snapshot = self._dead_letters.snapshot()
        held: list[pa.RecordBatch] = []
        rows = size = 0
        try:
            files = self._dead_letters.bucket_files(snapshot)
            for found in read(self._dead_letters.store, files, selection, without=tried):
                batch = found.filter(found.column("value").is_valid())  # without its bytes none can be replayed
                held.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= DEAD_LETTERS_AT_ONCE or size >= BYTES_AT_ONCE:
                    break
        except FileNotFoundError as error:
            if self._dead_letters.snapshot().version == snapshot.version:
                raise
            raise Overtaken(
                f"another replay of pipeline {self._name!r} wrote dead letters anew while they were read"
            ) from error
        return pa.Table.from_batches(held) if held else DEAD_LETTERS.empty_table()

    def _replay(
        self, walk: LocalPipeline, dead_letters: pa.Table, generation: int, now: datetime, done: ReplayResult
    ) -> None:
        reports, filtered = list[Report](), dict[TopicPartition, int]()
        try:
            for incarnation in pc.unique(dead_letters.column("_incarnation")).to_pylist():
                mine = dead_letters.filter(pc.equal(dead_letters.column("_incarnation"), incarnation))
                reports.append(self._run_task(walk, mine, incarnation, now))
                for (topic, partition), counts in reports[-1].counts.items():
                    filtered |= (
                        {TopicPartition(topic, incarnation, partition): counts.filtered} if counts.filtered else {}
                    )
            report = builder.merge_reports(reports)
            failed, rows = self._read(report.dead_letter_files), sum(file.rows for file in builder.row_files(report))
            if rows or filtered or _differ(dead_letters, failed):
                done.versions.append(self._commit(walk, dead_letters, failed, report, filtered, generation, now))
                self._tables.apply_side_files()
            else:
                self._discard(report)
        except Overtaken:
            self._discard(builder.merge_reports(reports))
            raise
        done.chosen += dead_letters.num_rows
        done.rows, done.filtered = done.rows + rows, done.filtered + sum(filtered.values())
        for one in failed.group_by(["outcome", "schema_id", "error"]).aggregate([([], "count_all")]).to_pylist():
            kind = (one["outcome"], one["schema_id"], one["error"])
            done.failed[kind] = done.failed.get(kind, 0) + one["count_all"]

    def _run_task(self, walk: LocalPipeline, dead_letters: pa.Table, incarnation: int, now: datetime) -> Report:
        """Run a task on the dead letters of one incarnation."""
        records = as_read(dead_letters)
        incarnations = dict.fromkeys(pc.unique(records.column("topic")).to_pylist(), incarnation)
        return walk.run(
            lambda _: map(Piece, records.to_batches()),
            lambda _: walk.task_plan(now, "replay", incarnations, self._older),
        )

    def _commit(
        self,
        walk: LocalPipeline,
        dead_letters: pa.Table,
        failed: pa.Table,
        report: Report,
        filtered: Mapping[TopicPartition, int],
        generation: int,
        now: datetime,
    ) -> int:
        walk.grow(self._main)  # before any file has them
        files = builder.row_files(report)
        facts = {
            "started": now.isoformat(), "moves": _moves(dead_letters, failed, filtered, files),
            **builder.spec_facts(report, walk.specs),
            "letters": dead_letters.num_rows, **builder.sums(files), **builder.target_facts(report),
        }  # fmt: skip
        planned = Replay(
            uuid4().hex, generation, report.files, walk.side_files(report),
            {self._settings.dead_letters: places(dead_letters)}, facts, walk.schemas.meant(report),
            walk.schemas.privacy_version,
        )  # fmt: skip
        return self._main.replay(self._main.snapshot(), planned)

    def _read(self, files: Sequence[StagedFile]) -> pa.Table:
        """Read dead letters that failed again: without their bytes."""
        columns = [*PROVENANCE.names[:4], "schema_id", "outcome", "error"]
        schema = pa.schema([DEAD_LETTERS.field(name) for name in columns])
        opened = (open_file(self._dead_letters.store, file.path) for file in files)
        found = [pq.read_table(source, columns=columns).cast(schema) for source in opened]
        return pa.concat_tables([schema.empty_table(), *found])

    def _discard(self, report: Report) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        assert self._walk is not None, "what was staged was staged by it"
        self._tables.discard(report.files, self._walk.side_files(report))


def _moves(
    dead_letters: pa.Table, failed: pa.Table, filtered: Mapping[TopicPartition, int], files: Sequence[StagedFile]
) -> list[dict[str, Any]]:
    """Return what the replay changes of each part's outcomes: in sum nothing, from what was read and written."""
    found: dict[TopicPartition, dict[str, int]] = {}
    for table, sign in ((dead_letters, -1), (failed, 1)):
        for part, outcome, count in _outcomes(table):
            mine = found.setdefault(part, {"rows": 0, "dead_letters": 0, "quarantined": 0})
            mine["quarantined" if outcome == "quarantined" else "dead_letters"] += sign * count
    for part, count in filtered.items():
        found[part]["filtered"] = count
    for mine in found.values():
        mine["rows"] = -sum(mine.values())
    assert sum(mine["rows"] for mine in found.values()) == sum(file.rows for file in files), f"{found}, {files}"
    return [{**vars(part), **mine} for part, mine in found.items()]


def _outcomes(table: pa.Table) -> Iterator[tuple[TopicPartition, str, int]]:
    keys = ["_topic", "_incarnation", "_partition", "outcome"]
    for row in table.group_by(keys, use_threads=False).aggregate([([], "count_all")]).to_pylist():
        yield TopicPartition(row["_topic"], row["_incarnation"], row["_partition"]), row["outcome"], row["count_all"]


def _differ(before: pa.Table, after: pa.Table) -> bool:
    """Return whether dead letters that failed again did so for other reasons. That the window moved is none."""
    return _reasons(before) != _reasons(after)


def _reasons(dead_letters: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    names = [*PROVENANCE.names[:4], "schema_id", "outcome", "error"]
    return {
        tuple(row[name] for name in names[:4]): (
            row["schema_id"],
            row["outcome"],
            row["error"].partition(", outside [")[0],
        )
        for row in dead_letters.select(names).to_pylist()  # cold: dead letters only
    }
