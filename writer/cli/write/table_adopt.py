"""`headrace table adopt`: takes over a Delta or Iceberg table of another writer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from rich.console import Console

import bucketers
from writer.avro.schema_plan import PROVENANCE
from writer.batch.bucketing import times_of
from writer.batch.staging.parquet_files import open_file
from writer.cli.write import table_accept
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.config.table_sections import layout
from writer.core.errors import ConfigError
from writer.core.files import BucketFile
from writer.core.text import instant, plural
from writer.maintenance.retention import rows_of
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.sealing.manifest import bucket_path
from writer.storage.damage import naming_damage
from writer.table.factory import foreign_table, main_table
from writer.table.log.foreign_writes import reading
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable
from writer.table.takeover import obstacles, outside

if TYPE_CHECKING:
    from writer.table.iceberg.adoption import ForeignTable  # a second, for pyiceberg

_BUCKETS_COMPARED = 16  # spread over all, newest file of each
_ROWS_COMPARED = 10_000  # of a file
_NAMED = 3  # buckets in a sentence
_PLACES = (("_topic", "_partition", "_offset"), ("kafka_topic", "kafka_partition", "kafka_offset"),
           ("topic", "partition", "offset"))  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """An adoption, ready to be written."""

    snapshot: PipelineSnapshot
    rows: int
    files: int
    buckets: int
    compared: int  # rows whose bucket was worked out anew, and is the one that they lie in
    added: Sequence[str]  # columns


def run_adopt(config: Config, name: str, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show the adoption of a pipeline's table, and write it if asked. Raises ConfigError when it cannot be.

    Returns true: there is always something to write.
    """
    settings = config.one_table(name)
    if settings.table.format == "parquet":
        raise ConfigError(
            f"pipelines.{name}.table.format is parquet: plain files are not adopted, for they have no log that "
            "says which of them count. Make a Delta table of them first (CONVERT TO DELTA), or begin a new table."
        )
    table = foreign_table(name, config) if settings.table.format == "iceberg" else main_table(name, config)
    with reading(table.location):
        if not table.exists():
            raise ConfigError(f"there is no table at {table.location}; `headrace run` makes one.")
        plan = _plan(name, settings, table)
    version = None
    if write:
        facts = {"at": now.isoformat(), "rows": plan.rows, "files": plan.files, "buckets": plan.buckets}
        version = table.take(plan.snapshot, list(PROVENANCE), layout(settings.bucket), facts)
    if as_json:
        tables.emit_whole({
            "pipeline": name, "version": version, "rows": plan.rows, "files": plan.files, "buckets": plan.buckets,
            "rows_compared": plan.compared, "columns_added": list(plan.added), "start": _start(settings),
        })  # fmt: skip
    else:
        _show(out, name, settings, table, plan, version)
    return True


def _plan(name: str, settings: Pipeline, table: "PipelineTable | ForeignTable") -> Plan:
    """Look at everything, and say all that is in the way at once. Raises ConfigError, OSError."""
    bucketer = bucketers.build(settings.bucket)
    snapshot = table.snapshot()
    found = obstacles(snapshot.state, list(PROVENANCE), bucketer.columns)
    if not isinstance(table, PipelineTable):
        found += table.obstacles()
    files = [] if found else table.bucket_files(snapshot)
    if path := outside([file.path for file in files]):
        found.append(f"Its file {path} lies elsewhere, as those of a shallow clone do. Clone it whole.")
    compared = 0
    if not found:
        wrong = _strange(bucketer, files)
        compared, other = (0, "") if wrong else _compared(settings, bucketer, table, files)
        found += [text for text in (wrong, other) if text]
    if "start" not in settings.model_fields_set and not snapshot.epoch:
        found.append(
            f"The offsets of its rows are not known: say where to read on, pipelines.{name}.start{_hint(table, found)}."
        )
    if found:
        raise ConfigError(f"the table at {table.location} cannot be adopted:\n  " + "\n  ".join(found))
    have = {column.lower() for column in snapshot.columns().names}
    return Plan(
        snapshot, sum(rows_of(table.store, file) for file in files), len(files),
        len({file.bucket for file in files}), compared, [one for one in PROVENANCE.names if one not in have],
    )  # fmt: skip


def _strange(bucketer: bucketers.Bucketer, files: Sequence[BucketFile]) -> str:
    """Name buckets that the bucketer would never give."""
    if not bucketers.goes_by_time(bucketer):
        return ""
    odd = sorted(
        {bucket_path(bucketer.columns, f.bucket) for f in files if bucketers.interval(bucketer, f.bucket) is None}
    )
    if not odd:
        return ""
    more = f" and {len(odd) - _NAMED:,} more" if len(odd) > _NAMED else ""
    return f"Its partitions {', '.join(odd[:_NAMED])}{more} are no buckets as configured. Correct 'bucket'."


def _compared(
    settings: Pipeline, bucketer: bucketers.Bucketer, table: "PipelineTable | ForeignTable", files: Sequence[BucketFile]
) -> tuple[int, str]:
    """Work out the buckets of some rows anew. Returns how many are right, or what is wrong."""
    newest = {file.bucket: file for file in files}
    chosen = sorted(newest.values(), key=lambda file: tuple(map(str, file.bucket)))
    count = 0
    for file in chosen[:: max(1, len(chosen) // _BUCKETS_COMPARED)]:
        rows = _some(table, file)
        if not rows.num_rows:
            continue
        try:
            topics = pa.repeat(next(iter(settings.topics.names), ""), rows.num_rows)
            times, _ = times_of(rows, settings.event_time.rule(settings.event_time.unit), topics)
            timed = pc.is_valid(times)
            found = bucketer.assign(rows.filter(timed), times.filter(timed))
        except ValueError as error:
            return 0, f"{str(error)[:1].upper()}{str(error)[1:]}. Set event_time and bucket to what the table has."
        # cold: the few codes that occur in the rows of one file
        other = {found.values[code] for code in pc.unique(found.codes).to_pylist()} - {file.bucket}
        if other:
            named, here = (bucket_path(bucketer.columns, key) for key in (min(other, key=str), file.bucket))
            return 0, f"Rows of its partition {here} belong to {named} as configured. Set 'bucket' to what it is."
        count += pc.sum(timed).as_py() or 0
    return count, ""


def _some(table: "PipelineTable | ForeignTable", file: BucketFile) -> pa.Table:
    """Return the first rows of a file."""
    path = f"{table.store.location}/{file.path}"
    with open_file(table.store, file.path) as source, naming_damage(path, "a Parquet file"):
        batches = pq.ParquetFile(source).iter_batches(_ROWS_COMPARED)
        first = next(batches, None)
        return pa.table({}) if first is None else pa.Table.from_batches([first])


def _hint(table: "PipelineTable | ForeignTable", found: Sequence[str]) -> str:
    """Find offsets in columns that are named as such, where nothing else is wrong."""
    if found:
        return ""
    rows = table.rows()
    names = next((names for names in _PLACES if set(names) <= set(rows.schema.names)), None)
    if names is None:
        return ", such as {timestamp: 2026-11-20T05:00:00Z} or {offsets: {topic: {0: 17}}}"
    ends: dict[str, dict[int, int]] = {}
    listed = rows.to_table(columns=list(names)).group_by(list(names[:2])).aggregate([(names[2], "max")])
    for topic, partition, offset in zip(*(listed.column(n) for n in (*names[:2], f"{names[2]}_max")), strict=True):
        if None not in (topic.as_py(), partition.as_py(), offset.as_py()):
            ends.setdefault(str(topic), {})[int(partition.as_py())] = int(offset.as_py()) + 1
    offsets = ", ".join(f"{t}: {{{', '.join(f'{p}: {o}' for p, o in sorted(ps.items()))}}}" for t, ps in ends.items())
    return f". By its columns {', '.join(names)} they end at {{offsets: {{{offsets}}}}}" if ends else ""


def _start(settings: Pipeline) -> Any:
    match settings.start:
        case {"timestamp": datetime() as when}:
            return {"timestamp": when.isoformat()}
        case start:
            return start


def _show(
    out: Console, name: str, settings: Pipeline, table: "PipelineTable | ForeignTable", plan: Plan, version: int | None
) -> None:
    at = "" if plan.snapshot.version < 0 else f", at version {plan.snapshot.version}"
    tables.sentence(
        out,
        f"{name}: the table at {table.location} has {plural(plan.rows, 'row')} in {plural(plan.files, 'file')} of "
        f"{plural(plan.buckets, 'bucket')}{at}.",
    )
    tables.sentence(out, f"The buckets of {plural(plan.compared, 'row')} were worked out anew: all are right.")
    added = f"Columns {', '.join(plan.added)} are added, null in these rows." if plan.added else "It has all columns."
    tables.sentence(out, f"{added} The pipeline begins at {_words(_start(settings))}.")
    if version is None:
        tables.sentence(out, "First stop all other writers of the table.")
    else:
        tables.sentence(
            out,
            f"Written as version {version}: the table is the pipeline's from there on, and its rows are a term of the "
            "account. Nobody else may add rows now. Start the pipeline.",
        )


def _words(start: str | Mapping[str, Any]) -> str:
    if isinstance(start, str):
        return start
    return ", ".join(f"{key} {instant(at) if key == 'timestamp' else at}" for key, at in start.items())


table = typer.Typer(no_args_is_help=True, help="Tables that other clients made, or changed.")


@table.command()
def adopt(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a Delta or Iceberg table that headrace did not make the pipeline's, with the rows that it has.

    Its partition columns must be the pipeline's buckets, and its protocol reader 1, writer 2, or its format version 2;
    what is in the way is said, all at once. `start` in the configuration says where to read on. Columns that say where
    a row came from are added, and the old rows are a term of the account: `audit` adds up.

    Exit codes: 0 shown or written, 1 another process wrote the table meanwhile, 2 it cannot be adopted.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(run_adopt, settings, name, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


@table.command()
def accept(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Accept what another client did to the pipeline's table, such as UPDATE or RESTORE: its rows stay as they are.

    The writer refuses to go on from it, as offsets did not move with the rows; `headrace rewind` takes it back. Once it
    is accepted, the writer goes on from its frontier, and `audit` proves the rows from there on; of those before, it
    says that they were accepted.

    Exit codes: 0 shown or written, 1 a driver runs, or another process wrote the table meanwhile, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(table_accept.run_accept, settings, name, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
