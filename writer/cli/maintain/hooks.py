"""`headrace hooks`: lists deliveries, delivers them again, or skips them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

import bucketers
from writer.config.loader import load
from writer.core.files import BucketKey
from writer.core.text import instant, iso, span
from writer.hooks.delivery import HookDelivery
from writer.hooks.dispatcher import choose_deliveries, deliver_pending, deliveries, skip_buckets
from writer.hooks.outbox import OutboxContent, OutboxEntry
from writer.output.cli_options import (
    AsJson,
    ConfigFile,
    OnePipeline,
    OneTarget,
    OnlyTarget,
    Pipelines,
    buckets_help,
    duration_of,
)
from writer.output.table_choice import ChosenTable, choose_tables, load_table
from writer.output.tables import Column, TextTable, console, emit_whole, hanging, sentence
from writer.sealing.bucket_selection import parse_buckets
from writer.sealing.manifest import bucket_path

# Of a hook, for a person; --json has all.
_ENTRIES_SHOWN = 10
_ENTRY_COLUMNS = [
    Column("  bucket"),
    Column("version", right=True),
    Column("sealed"),
    Column("tries", right=True),
    Column("next"),
]

HookState = tuple[HookDelivery, OutboxContent | None]

hooks = typer.Typer(no_args_is_help=True, help="Hooks: which servers get sealed buckets, what waits, and what failed.")

_Hook = Annotated[str | None, typer.Option("--hook", help="Only this hook.")]


@hooks.command("list")
def list_(config: ConfigFile, pipeline: Pipelines = None, target: OnlyTarget = None, as_json: AsJson = False) -> None:
    """Show each hook: what it has delivered, what waits, and why. Reads the lake only.

    Exit codes: 0 shown, 1 a table cannot be read, 2 configuration.
    """
    states: list[tuple[ChosenTable, list[HookState]]] = []
    for table in choose_tables(load(config), pipeline, target):
        hooks_of_table = deliveries(table.pipeline, table.config)
        states.append((table, [(delivery, delivery.outbox.read()) for delivery in hooks_of_table]))
    _show(states, as_json=as_json)


@hooks.command()
def run(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    hook: _Hook = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket", help=buckets_help("Deliver the newest manifests of these buckets, once more if need be")
        ),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait for what is under way.")] = "10 min",
    as_json: AsJson = False,
) -> None:
    """Deliver what waits now, in this process, and wait for it. Beside the driver or without it.

    Exit codes: 0 nothing waits any more, 1 something failed or still waits, 2 configuration.
    """
    table = load_table(config, pipeline, target)
    longest_wait = duration_of("--timeout", timeout)
    chosen = choose_deliveries(table.config, table.pipeline, hook)
    selection = None
    if bucket is not None:
        selection = parse_buckets(bucket, bucketers.build(table.config.pipelines[table.pipeline].bucket))
    states: list[HookState] = []
    is_incomplete = False
    for delivery in chosen:
        content = deliver_pending(delivery, selection, longest_wait)
        states.append((delivery, content))
        is_incomplete = is_incomplete or bool(delivery.health.failures or content.pending)
    _show([(table, states)], as_json=as_json)
    raise typer.Exit(int(is_incomplete))


@hooks.command()
def skip(
    config: ConfigFile,
    hook: Annotated[str, typer.Option("--hook", help="Of which hook.")],
    bucket: Annotated[str, typer.Option("--bucket", help=buckets_help("Which buckets"))],
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    as_json: AsJson = False,
) -> None:
    """Give up what waits of buckets: this hook does not get them. `hooks run --bucket` delivers them after all.

    Exit codes: 0 given up, 1 nothing of them waits, 2 configuration.
    """
    table = load_table(config, pipeline, target)
    (delivery,) = choose_deliveries(table.config, table.pipeline, hook)
    bucketer = bucketers.build(table.config.pipelines[table.pipeline].bucket)
    versions: dict[BucketKey, list[int]] = {}
    for entry in skip_buckets(delivery, parse_buckets(bucket, bucketer)):
        versions.setdefault(entry.bucket, []).append(entry.version)
    if as_json:
        skipped = [{"bucket": list(key), "versions": numbers} for key, numbers in versions.items()]
        emit_whole({"pipeline": table.pipeline, "hook": hook, "buckets": skipped})
    else:
        _show_skips(hook, bucket, {bucket_path(bucketer.columns, key): versions[key] for key in versions})
    raise typer.Exit(int(not versions))


def _show_skips(hook: str, text: str, versions: Mapping[str, Sequence[int]]) -> None:
    out = console()
    for bucket_name, numbers in versions.items():
        sentence(out, f"{hook} does not get {bucket_name} version {', '.join(map(str, numbers))}")
    if not versions:
        sentence(out, f"nothing of {text} waits for {hook}")


def _show(states: Sequence[tuple[ChosenTable, Sequence[HookState]]], *, as_json: bool) -> None:
    now = datetime.now(UTC)
    if as_json:
        documents = {table.title: [_document(*state) for state in hook_states] for table, hook_states in states}
        emit_whole({"at": iso(now), "pipelines": documents})
        return
    out = console()
    for table, hook_states in states:
        if not hook_states:
            sentence(out, f"{table.title} has no hooks (pipelines.{table.pipeline}.hooks)")
        columns = bucketers.build(table.config.pipelines[table.pipeline].bucket).columns
        for delivery, content in hook_states:
            _show_hook(table.title, delivery, content, columns, now, out)


def _document(delivery: HookDelivery, content: OutboxContent | None) -> dict[str, Any]:
    position = content and content.position
    content = content or OutboxContent(-1)
    return {
        "hook": delivery.hook.name,
        "target": delivery.hook.target,
        "position": position,
        "delivered": content.delivered,
        "superseded": content.superseded,
        "skipped": content.skipped,
        "last": content.last,
        "waiting": [_entry_document(entry) for entry in content.pending],
    }


def _entry_document(entry: OutboxEntry) -> dict[str, Any]:
    return {
        "bucket": list(entry.bucket),
        "version": entry.version,
        "sealed_at": iso(entry.since),
        "attempts": entry.attempts,
        "next": entry.due and iso(entry.due),
        "error": entry.error or None,
        "state": dict(entry.state),
    }


def _show_hook(
    title: str,
    delivery: HookDelivery,
    content: OutboxContent | None,
    columns: Sequence[str],
    now: datetime,
    out: Console,
) -> None:
    is_new = content is None
    content = content or OutboxContent(-1)
    sentence(out, f"{title}  {delivery.hook.name}  → {delivery.hook.target}", "bold")
    counts = [f"{content.delivered:,} delivered", f"{len(content.pending):,} waiting"]
    if content.superseded:
        counts.append(f"{content.superseded:,} superseded")
    if content.skipped:
        counts.append(f"{content.skipped:,} skipped")
    sentence(out, "  " + ", ".join(counts))
    if is_new:
        sentence(out, "  never ran yet", "dim")
    newest = content.last
    if newest is not None:
        bucket = f"{bucket_path(columns, newest['bucket'])} version {newest['version']}"
        sentence(out, f"  last: {bucket} at {instant(newest['at'])}: {newest['what']}")
    if content.pending:
        _show_entries(content.pending, columns, now, out)


def _show_entries(entries: Sequence[OutboxEntry], columns: Sequence[str], now: datetime, out: Console) -> None:
    TextTable(out, _ENTRY_COLUMNS).add([_entry_row(entry, columns, now) for entry in entries[:_ENTRIES_SHOWN]])
    if len(entries) > _ENTRIES_SHOWN:
        sentence(out, f"  and {len(entries) - _ENTRIES_SHOWN:,} more")
    for error in dict.fromkeys(entry.error for entry in entries if entry.error):
        hanging(out, "  ", error, "yellow")


def _entry_row(entry: OutboxEntry, columns: Sequence[str], now: datetime) -> list[str]:
    return [
        f"  {bucket_path(columns, entry.bucket)}",
        str(entry.version),
        instant(entry.since),
        str(entry.attempts),
        _describe_next_attempt(entry, now),
    ]


def _describe_next_attempt(entry: OutboxEntry, now: datetime) -> str:
    if entry.due is None or entry.due <= now:
        return "now"
    verb = "looks again" if entry.state.get("accepted") else "tries again"
    return f"{verb} in {span((entry.due - now).total_seconds())}"
