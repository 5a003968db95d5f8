"""`headrace hooks`: lists deliveries, delivers them again, or skips them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from headrace import bucketers
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.text import instant, span
from headrace.writer.hooks.delivery import HookDelivery
from headrace.writer.hooks.dispatcher import (
    choose_deliveries,
    deliver_pending,
    deliveries,
    find_waiting,
    skip_buckets,
)
from headrace.writer.hooks.outbox import OutboxContent, OutboxEntry
from headrace.writer.output.cli_options import buckets_help, duration_of
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Table, Tables, look_at_each_table
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.output.tables import Column, TextTable, hanging, sentence
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.manifest import bucket_path

# Of a hook, for a person; --json has all.
_ENTRIES_SHOWN = 10
_ENTRY_COLUMNS = [
    Column("  bucket"),
    Column("version", right=True),
    Column("sealed"),
    Column("tries", right=True),
    Column("next"),
]


@dataclass(frozen=True)
class WaitingDelivery:
    """A sealed version of a bucket that a hook is to get. `next`: its next attempt; None: now."""

    bucket: BucketKey
    version: int
    sealed_at: datetime
    attempts: int
    next: datetime | None
    error: str | None
    # The hook's own, of a delivery that runs.
    state: Mapping[str, Any]
    # The folders of its files.
    name: str = field(metadata=SCREEN_ONLY)
    is_running: bool = field(metadata=SCREEN_ONLY)

    def cells(self, now: datetime) -> list[str]:
        """Return its row of a table."""
        attempt = "now"
        if self.next is not None and self.next > now:
            verb = "looks again" if self.is_running else "tries again"
            attempt = f"{verb} in {span((self.next - now).total_seconds())}"
        return [f"  {self.name}", str(self.version), instant(self.sealed_at), str(self.attempts), attempt]


@dataclass(frozen=True)
class LastDelivery:
    """The newest delivery of a hook, and in words what came of it."""

    bucket: BucketKey
    version: int
    at: datetime
    what: str
    # The folders of its files.
    name: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class HookStatus:
    """What a hook has delivered, and what waits."""

    hook: str
    target: str
    # The version of the table's log up to which it has the seals; None: it never ran.
    position: int | None
    delivered: int
    superseded: int
    skipped: int
    last: LastDelivery | None
    waiting: Sequence[WaitingDelivery]
    # Attempts of this process that failed.
    failures: int = field(metadata=SCREEN_ONLY)

    def render(self, title: str, now: datetime, out: Console) -> None:
        """Draw the numbers, the last delivery, and what waits first. `title`: of its table."""
        sentence(out, f"{title}  {self.hook}  → {self.target}", "bold")
        counts = [f"{self.delivered:,} delivered", f"{len(self.waiting):,} waiting"]
        if self.superseded:
            counts.append(f"{self.superseded:,} superseded")
        if self.skipped:
            counts.append(f"{self.skipped:,} skipped")
        sentence(out, "  " + ", ".join(counts))
        if self.position is None:
            sentence(out, "  never ran yet", "dim")
        if self.last is not None:
            bucket = f"{self.last.name} version {self.last.version}"
            sentence(out, f"  last: {bucket} at {instant(self.last.at)}: {self.last.what}")
        if self.waiting:
            TextTable(out, _ENTRY_COLUMNS).add([delivery.cells(now) for delivery in self.waiting[:_ENTRIES_SHOWN]])
        if len(self.waiting) > _ENTRIES_SHOWN:
            sentence(out, f"  and {len(self.waiting) - _ENTRIES_SHOWN:,} more")
        for error in dict.fromkeys(delivery.error for delivery in self.waiting if delivery.error):
            hanging(out, "  ", error, "yellow")


@dataclass(frozen=True)
class HookReport(Report):
    """The hooks of each table, by its title."""

    at: datetime
    pipelines: Mapping[str, Sequence[HookStatus]]
    # Where a table's hooks are configured, by its title.
    keys: Mapping[str, str] = field(metadata=SCREEN_ONLY)
    # Of tables that cannot be read.
    failure: HeadraceError | None = field(default=None, metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw each hook."""
        for title, hooks in self.pipelines.items():
            if not hooks:
                sentence(out, f"{title} has no hooks ({self.keys[title]})")
            for hook in hooks:
                hook.render(title, self.at, out)


@dataclass(frozen=True)
class DeliveryReport(HookReport):
    """The hooks of a table after their deliveries."""

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where an attempt failed, or something waits."""
        is_pending = any(hook.failures or hook.waiting for hooks in self.pipelines.values() for hook in hooks)
        return 1 if is_pending else 0


@dataclass(frozen=True)
class SkippedBucket:
    """A bucket that a hook does not get, and the versions of its manifest."""

    bucket: BucketKey
    versions: Sequence[int]
    # The folders of its files.
    name: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class SkipReport(Report):
    """What was given up, or would be."""

    pipeline: str
    hook: str
    dry_run: bool
    buckets: Sequence[SkippedBucket]
    # The buckets as they were asked for.
    text: str = field(metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where nothing of the buckets waited."""
        return 0 if self.buckets else 1

    @property
    def has_changes(self) -> bool:
        """Whether anything of the buckets waits."""
        return bool(self.buckets)

    def render(self, out: Console) -> None:
        """Name the buckets."""
        verb = "would not get" if self.dry_run else "does not get"
        for bucket in self.buckets:
            versions = ", ".join(map(str, bucket.versions))
            sentence(out, f"{self.hook} {verb} {bucket.name} version {versions}")
        if not self.buckets:
            sentence(out, f"nothing of {self.text} waits for {self.hook}")


@command(exits={0: "shown", 1: "a table cannot be read", 2: "configuration"})
def list_(tables: Tables) -> HookReport:
    """Show each hook: what it has delivered, what waits, and why. Reads the lake only."""

    def list_hooks(table: ChosenTable) -> list[HookStatus]:
        columns = _bucketer(table).columns
        return [
            _hook_status(delivery, delivery.outbox.read(), columns)
            for delivery in deliveries(table.pipeline, table.config)
        ]

    hooks, failure = look_at_each_table(tables, list_hooks)
    return HookReport(datetime.now(UTC), hooks, _keys(tables), failure)


@command(exits={0: "nothing waits any more", 1: "something failed or still waits", 2: "configuration"})
def run(
    table: Table,
    hook: Annotated[str | None, typer.Option("--hook", help="Only this hook.")] = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket", help=buckets_help("Deliver the newest manifests of these buckets, once more if need be")
        ),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait for what is under way.")] = "10 min",
) -> DeliveryReport:
    """Deliver what waits now, in this process, and wait for it. Beside the driver or without it."""
    longest_wait = duration_of("--timeout", timeout)
    hook_deliveries = choose_deliveries(table.config, table.pipeline, hook)
    bucketer = _bucketer(table)
    selection = None
    if bucket is not None:
        selection = parse_buckets(bucket, bucketer)
    hooks: list[HookStatus] = []
    for delivery in hook_deliveries:
        content = deliver_pending(delivery, selection, longest_wait)
        hooks.append(_hook_status(delivery, content, bucketer.columns))
    return DeliveryReport(datetime.now(UTC), {table.title: hooks}, _keys([table]))


@command(exits={0: "given up or shown", 1: "nothing of them waits", 2: "configuration"})
def skip(
    table: Table,
    hook: Annotated[str, typer.Option("--hook", help="Of which hook.")],
    bucket: Annotated[str, typer.Option("--bucket", help=buckets_help("Which buckets"))],
    *,
    write: bool,
) -> SkipReport:
    """Give up what waits of buckets: this hook does not get them. `hooks run --bucket` delivers them after all."""
    (delivery,) = choose_deliveries(table.config, table.pipeline, hook)
    bucketer = _bucketer(table)
    selection = parse_buckets(bucket, bucketer)
    entries = skip_buckets(delivery, selection) if write else find_waiting(delivery, selection)
    versions: dict[BucketKey, list[int]] = {}
    for entry in entries:
        versions.setdefault(entry.bucket, []).append(entry.version)
    buckets = [SkippedBucket(key, versions[key], bucket_path(bucketer.columns, key)) for key in versions]
    return SkipReport(table.pipeline, hook, not write, buckets, bucket)


def _bucketer(table: ChosenTable) -> bucketers.Bucketer:
    return bucketers.build(table.config.pipelines[table.pipeline].bucket)


def _keys(tables: Sequence[ChosenTable]) -> dict[str, str]:
    return {table.title: f"pipelines.{table.pipeline}.hooks" for table in tables}


def _hook_status(delivery: HookDelivery, content: OutboxContent | None, columns: Sequence[str]) -> HookStatus:
    """Return what an outbox says of a hook; None: it never ran. `columns`: of the table's buckets."""
    position = None
    if content is not None:
        position = content.position
    content = content or OutboxContent(-1)
    last = None
    if content.last is not None:
        key = tuple(content.last["bucket"])
        time = datetime.fromisoformat(content.last["at"])
        last = LastDelivery(key, content.last["version"], time, content.last["what"], bucket_path(columns, key))
    return HookStatus(
        hook=delivery.hook.name,
        target=delivery.hook.target,
        position=position,
        delivered=content.delivered,
        superseded=content.superseded,
        skipped=content.skipped,
        last=last,
        waiting=[_waiting_delivery(entry, columns) for entry in content.pending],
        failures=delivery.health.failures,
    )


def _waiting_delivery(entry: OutboxEntry, columns: Sequence[str]) -> WaitingDelivery:
    return WaitingDelivery(
        bucket=entry.bucket,
        version=entry.version,
        sealed_at=entry.since,
        attempts=entry.attempts,
        next=entry.due,
        error=entry.error or None,
        state=entry.state,
        name=bucket_path(columns, entry.bucket),
        is_running=entry.is_running(),
    )
