"""`headrace delete-rows`: what would go, taking it out, and what is left of it elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.console import Console

import bucketers
from writer.avro.schema_plan import parsed
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError, HeadraceError
from writer.core.text import plural
from writer.maintenance import dead_letter_deletion
from writer.maintenance.dead_letter_deletion import DeadLetters
from writer.maintenance.local_pipeline import opened
from writer.maintenance.row_deletion import DeletionResult, DeletionScan, RawDeletion, RowDeletion
from writer.maintenance.row_keys import Keys, from_file, hashed_too, where as condition
from writer.output import tables as lines
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, OneTarget
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.privacy.keyring import read_keyring
from writer.privacy.policy import Action, PrivacyError
from writer.schemas.registry import SchemaSource, source
from writer.sealing.manifest import bucket_path
from writer.table.factory import all_tables
from writer.table.log.foreign_writes import CommitFailed, one_line
from writer.table.row_removal import together
from writer.table.table import PipelineTable

_RAW_LEFT = (
    "Records of which no row is left (by dedupe, retention or another client's DELETE), those that event specs left "
    "out, tombstones, and those that cannot be decoded are not found by offset; they stay until table.raw.retention is "
    "over."
)


def run_delete(
    config: Config, name: str, keys: Keys, source: SchemaSource, *, with_dead_letters: bool, write: bool,
    now: datetime, as_json: bool, out: Console, target: str | None = None,
) -> bool:  # fmt: skip
    """Take the rows out of a pipeline's tables, or only show what would go. Returns whether any would go.

    Raises HeadraceError.
    """
    whole, config = all_tables(name, config), config.at_target(name, target)
    settings, known = config.pipelines[name], all_tables(name, config)
    main, side = known.main, known.side
    main.check_current()
    request = uuid4().hex
    rule = settings.event_time.rule(settings.event_time.unit)
    tables = [main, *(table for table in [side(settings.late_place)] if table.exists())]
    columns = bucketers.build(settings.bucket).columns
    raw = RawDeletion(whole, now, request)
    wanted = _protected(config, name, keys, main, source)
    works = [
        RowDeletion(table, wanted, columns, rule, settings.roll.target_file_size, request=request, raw=raw)
        for table in tables
    ]
    apart = whole.side(settings.dead_letters)
    try:
        if write:
            whole.apply_side_files()  # rows and dead letters that wait are there by then
            if behind := [why for place, why in whole.behind.items() if place in (main.location, settings.late_place)]:
                raise HeadraceError(f"rows that were committed for the table are not in it yet: {behind[0]}")
        looks, replays = [work.look() for work in works], whole.main.snapshot().replays
        done: list[list[DeletionResult]] = [list(work.run(now)) if write else [] for work in works]
        found = None
        if with_dead_letters and apart.exists():
            walk = opened(name, config, source, forgives=True)
            find = partial(dead_letter_deletion.find, apart, walk, wanted, main.snapshot().columns())
            delete = partial(dead_letter_deletion.delete, whole, apart, find, wanted, now, request, raw.remove)
            found = delete() if write else find()
        if write and whole.main.snapshot().replays != replays:  # dead letters may have become rows meanwhile
            whole.apply_side_files()
            done = [[*before, *work.run(now)] for before, work in zip(done, works, strict=True)]
        meant = [work.places(look) for work, look in zip(works, looks, strict=True) if raw and not write]
        raw_records = raw.look(together([*meant, *([found.places] if found else [])])) if meant else raw.records
    except OSError as error:
        raise CommitFailed(f"cannot read {main.location}: {one_line(error)}") from error
    if as_json:
        rows, *late = (_to_dict(*one) for one in zip(looks, done, strict=True))
        document = {
            "late_table": late[0] if late else None,
            "dead_letters": None if found is None else dead_letter_deletion.to_dict(found),
            "raw_records": raw_records if raw else None, "raw_versions": raw.versions,
        }  # fmt: skip
        lines.emit_whole({"pipeline": name, "dry_run": not write, "request": request, **rows, **document})
    else:
        for what, looked, gone in zip((name, f"{name}, late table"), looks, done, strict=False):
            _show(out, what, keys, columns, looked, gone)
        _show_dead_letters(out, found)
        if raw:
            lines.sentence(out, f"Raw table: {plural(raw_records, 'record')} at their offsets. {_RAW_LEFT}")
        _left(out, name, delta=not main.hidden)
    return any(looked.rows for looked in looks) or bool(found and found.meant)


def _protected(config: Config, name: str, keys: Keys, main: PipelineTable, source: SchemaSource) -> Keys:
    """Return keys that find rows with hashes of their values, too, by any hash key of the keyring.

    Raises ConfigError for a column that holds nothing to compare with; HeadraceError where the schemas are not read.
    """
    settings, snapshot = config.pipelines[name], main.snapshot()
    if config.keys is None or not (settings.privacy or snapshot.privacy):
        return keys
    for field, action in _actions(config, name, keys, source) if settings.privacy else ():
        if action.kind in ("encrypt", "mask"):
            raise ConfigError(
                f"column {field!r} has the policy {action}: its values cannot be compared. Name another column."
            )
    return hashed_too(keys, snapshot.columns(), read_keyring(config.keys.source).hash_keys.values())


def _actions(config: Config, name: str, keys: Keys, source: SchemaSource) -> Iterator[tuple[str, Action]]:
    """Yield the columns that are named with the policies of their values, of each schema."""
    plan, specs = opened(name, config, source).plan, config.pipelines[name].record_specs
    assert plan.privacy is not None, "the pipeline has policies"
    for field in keys.fields:
        path = tuple(field.split("."))
        if (named := plan.privacy.policies.by_path.get(path)) is not None:
            yield field, named
        for record in parsed(plan.known_texts):
            with suppress(PrivacyError):  # its records are dead letters
                yield from ((field, action) for action in plan.privacy.actions(path, record, specs))


def _to_dict(looked: DeletionScan, done: Sequence[DeletionResult]) -> Mapping[str, Any]:
    return {
        "files": looked.files, "files_read": looked.candidates, "files_with_rows": len(looked.hits),
        "rows": looked.rows,
        "deleted": [
            {"bucket": list(one.bucket), "rows": one.rows, "files": one.files, "version": one.version} for one in done
        ],
    }  # fmt: skip


def _show(
    out: Console, name: str, keys: Keys, columns: Sequence[str], looked: DeletionScan, done: Sequence[DeletionResult]
) -> None:
    lines.sentence(
        out,
        f"{name}: {plural(looked.rows, 'row')} with {plural(keys.count, 'value')} of {', '.join(keys.fields)}, in "
        f"{plural(len(looked.hits), 'file')} of {plural(len(looked.buckets), 'bucket')}. Of {looked.files:,} files, "
        f"{looked.candidates:,} could hold some by their statistics and were read.",
    )
    shown = [(one.bucket, one.rows, one.files, str(one.version)) for one in done] or [
        (bucket, sum(hit.rows for hit in hits), len(hits), "-") for bucket, hits in looked.buckets.items()
    ]
    if shown:
        titles = [lines.Column("bucket", width_min=20), *lines.numbers("rows", "files", "version")]
        lines.TextTable(out, titles).add([
            [bucket_path(columns, bucket), f"{rows:,}", f"{files:,}", version]
            for bucket, rows, files, version in shown
        ])  # fmt: skip


def _show_dead_letters(out: Console, found: DeadLetters | None) -> None:
    if found is None:
        lines.sentence(out, "Dead letters were not looked at.")
    else:
        gone = "" if found.version is None else f", taken out in version {found.version} of their table"
        lines.sentence(out, f"Dead letters: {found.meant:,} of {found.dead_letters:,} hold such a row{gone}.")
        if found.undecodable:
            lines.sentence(
                out,
                f"{plural(found.undecodable, 'dead letter')} cannot be decoded, so it is unknown whose they are: "
                "`headrace dlq show --values` shows them.",
            )


def _left(out: Console, name: str, *, delta: bool) -> None:
    """Say where the rows are still to be found."""
    if delta:
        lines.sentence(
            out, f"The former files stay for readers of an older version; `headrace vacuum --pipeline {name} "
            "--yes` removes them once table.orphan_retention is over. The log keeps the least and the greatest "
            "value "
            "of a column of each file until its retention is over.",
        )  # fmt: skip
    else:
        lines.sentence(out, "The log keeps the least and the greatest value of a column of each file.")
    lines.sentence(
        out, "Kafka keeps the records until its own retention: a backfill or a new table would bring them back. Events "
        "that come from now on are kept.",
    )  # fmt: skip


def delete_rows(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    where: Annotated[
        str | None,
        typer.Option("--where", help='Which rows: "user_id = 42", "user_id IN (42, 43) AND country = \'DE\'".'),
    ] = None,
    keys: Annotated[Path | None, typer.Option("--keys", help="CSV file with a head: a value a line.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="With --keys: the column, in table and file.")] = None,
    title: Annotated[
        str | None, typer.Option("--file-column", help="With --keys: its name in the file, if it is another one.")
    ] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters/--no-dead-letters", help="Decode the dead letters and take theirs out too.")
    ] = True,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take rows out by their keys, for good: from the table, and from the dead letters that can be decoded.

    Bucket by bucket, in entries that `audit` knows and that say how many rows went, never whose. If the command is
    interrupted, run it again; the writer may run meanwhile. Says what is left, and where.

    Exit codes: 0 done or shown, 1 the storage or the registry does not answer, 2 configuration, or no such column.
    """
    settings = load(config)
    if (where is None) == (keys is None) or (keys is None) != (column is None):
        raise ConfigError("say which rows: either --where, or --keys with --column")
    wanted = condition(where) if where is not None else from_file(keys or Path(), column or "", title)
    name, schemas, out = settings.one(pipeline), source(settings.registry), console()
    work = partial(
        run_delete, settings, name, wanted, schemas, with_dead_letters=dead_letters, now=datetime.now(UTC),
        as_json=as_json, out=out, target=target,
    )  # fmt: skip
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
