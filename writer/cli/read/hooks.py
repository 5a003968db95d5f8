"""`headrace hooks`: lists deliveries, delivers them again, or skips them."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console

import bucketers
from writer.config.base import did_you_mean
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.files import BucketKey
from writer.core.text import instant, iso, span
from writer.hooks.delivery import HookDelivery
from writer.hooks.dispatcher import deliveries
from writer.hooks.outbox import OutboxContent, OutboxEntry
from writer.output.bucket_names import bucket_of
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, OneTarget, Pipelines, duration_of, load_table
from writer.output.tables import Column, TextTable, console, emit_whole, hanging, sentence
from writer.sealing.manifest import bucket_path

_PAUSE_S = 0.5
_SHOWN = 10  # outbox entries of a hook


def _chosen(config: Config, name: str, hook: str | None) -> list[HookDelivery]:
    found = deliveries(name, config)
    known = [delivery.hook.name for delivery in found]
    if not found:
        raise ConfigError(f"pipeline {name!r} has no hooks; list them in pipelines.{name}.hooks")
    if hook is not None and hook not in known:
        raise ConfigError(f"pipeline {name!r} has no hook {hook!r}{did_you_mean(hook, known)}")
    return [delivery for delivery in found if hook in (None, delivery.hook.name)]


def _worked_off(delivery: HookDelivery, key: BucketKey | None, within: timedelta) -> OutboxContent:
    """Do rounds until nothing waits, something failed, or the time is over. Returns the box."""
    deadline = time.monotonic() + within.total_seconds()
    delivery.take_up()
    if key is not None:
        delivery.redeliver(key)
    delivery.make_due()
    while True:
        box = delivery.run_round(datetime.now(UTC))
        due = delivery.next_due(box)
        tried = all(pending.error for pending in box.next_entries())
        if due is None or tried or time.monotonic() > deadline:
            return box
        time.sleep(_PAUSE_S)


def _to_dict(delivery: HookDelivery, box: OutboxContent | None) -> dict[str, Any]:
    known = box or OutboxContent(-1)
    return {
        "hook": delivery.hook.name, "target": delivery.hook.target, "position": known.position if box else None,
        "delivered": known.delivered, "superseded": known.superseded, "skipped": known.skipped, "last": known.last,
        "waiting": [
            {
                "bucket": list(pending.bucket), "version": pending.version, "sealed_at": iso(pending.since),
                "attempts": pending.attempts, "next": None if pending.due is None else iso(pending.due),
                "error": pending.error or None, "state": dict(pending.state),
            }
            for pending in known.pending
        ],
    }  # fmt: skip


def _show(config: Config, document: dict[str, list[dict[str, Any]]], *, as_json: bool) -> None:
    now, out = datetime.now(UTC), console()
    if as_json:
        emit_whole({"at": iso(now), "pipelines": document})
        return
    for name, found in document.items():
        columns = bucketers.build(config.pipelines[name].bucket).columns
        if not found:
            sentence(out, f"{name} has no hooks (pipelines.{name}.hooks)")
        for one in found:
            _show_hook(name, one, columns, now, out)


def _show_hook(pipeline: str, document: dict[str, Any], columns: Sequence[str], now: datetime, out: Console) -> None:
    waiting = document["waiting"]
    head = f"{pipeline}  {document['hook']}  → {document['target']}"
    state = f"{document['delivered']:,} delivered, {len(waiting):,} waiting"
    more = [f"{document[key]:,} {key}" for key in ("superseded", "skipped") if document[key]]
    sentence(out, head, "bold")
    sentence(out, "  " + ", ".join([state, *more]))
    if document["position"] is None:
        sentence(out, "  never ran yet", "dim")
    if (last := document["last"]) is not None:
        bucket = f"{bucket_path(columns, last['bucket'])} version {last['version']}"
        sentence(out, f"  last: {bucket} at {instant(last['at'])}: {last['what']}")
    if not waiting:
        return
    sheet = TextTable(
        out,
        [
            Column("  bucket"),
            Column("version", right=True),
            Column("sealed"),
            Column("tries", right=True),
            Column("next"),
        ],
    )
    sheet.add(
        [
            [
                f"  {bucket_path(columns, one['bucket'])}",
                str(one["version"]),
                instant(one["sealed_at"]),
                str(one["attempts"]),
                _when(one, now),
            ]
            for one in waiting[:_SHOWN]
        ]
    )
    if len(waiting) > _SHOWN:
        sentence(out, f"  and {len(waiting) - _SHOWN:,} more")
    for error in dict.fromkeys(one["error"] for one in waiting if one["error"]):
        hanging(out, "  ", error, "yellow")


def _when(one: dict[str, Any], now: datetime) -> str:
    if one["next"] is None:
        return "now"
    seconds = (datetime.fromisoformat(one["next"]) - now).total_seconds()
    word = "looks again" if one["state"].get("accepted") else "tries again"
    return f"{word} in {span(seconds)}" if seconds > 0 else "now"


hooks = typer.Typer(no_args_is_help=True, help="Hooks: which servers get sealed buckets, what waits, and what failed.")

_Hook = Annotated[str | None, typer.Option("--hook", help="Only this hook.")]


@hooks.command("list")
def list_(config: ConfigFile, pipeline: Pipelines = None, target: OneTarget = None, as_json: AsJson = False) -> None:
    """Show each hook: what it has delivered, what waits, and why. Reads the lake only.

    Exit codes: 0 shown, 1 a table cannot be read, 2 configuration.
    """
    settings = load(config)
    names = settings.chosen(pipeline)
    for name in names:
        settings = settings.at_target(name, target)
    found = {name: [_to_dict(one, one.outbox.read()) for one in deliveries(name, settings)] for name in names}
    _show(settings, found, as_json=as_json)


@hooks.command()
def run(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    hook: _Hook = None,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", help="Deliver the newest manifest of this bucket, also where it was delivered."),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait for what is under way.")] = "10 min",
    as_json: AsJson = False,
) -> None:
    """Deliver what waits now, in this process, and wait for it. Beside the driver or without it.

    Exit codes: 0 nothing waits any more, 1 something failed or still waits, 2 configuration.
    """
    (settings, name), within = load_table(config, pipeline, target), duration_of("--timeout", timeout)
    found = _chosen(settings, name, hook)
    key = None if bucket is None else bucket_of(bucket, bucketers.build(settings.pipelines[name].bucket))
    worked_off = [(delivery, _worked_off(delivery, key, within)) for delivery in found]
    _show(settings, {name: [_to_dict(*one) for one in worked_off]}, as_json=as_json)
    raise typer.Exit(int(any(delivery.health.failures or box.pending for delivery, box in worked_off)))


@hooks.command()
def skip(
    config: ConfigFile,
    hook: Annotated[str, typer.Option("--hook", help="Of which hook.")],
    bucket: Annotated[str, typer.Option("--bucket", help="Which bucket.")],
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    as_json: AsJson = False,
) -> None:
    """Give up what waits of a bucket: this hook does not get it. `hooks run --bucket` delivers it after all.

    Exit codes: 0 given up, 1 nothing of it waits, 2 configuration.
    """
    settings, name = load_table(config, pipeline, target)
    (delivery,) = _chosen(settings, name, hook)
    bucketer = bucketers.build(settings.pipelines[name].bucket)
    columns, key = bucketer.columns, bucket_of(bucket, bucketer)
    delivery.take_up()
    gone: list[OutboxEntry] = []

    def without(box: OutboxContent | None) -> OutboxContent:
        known = box or OutboxContent(-1)
        gone[:] = [pending for pending in known.pending if pending.bucket == key]
        return known.skip(gone)

    delivery.outbox.change(without)
    versions = [pending.version for pending in gone]
    if as_json:
        emit_whole({"pipeline": name, "hook": hook, "bucket": list(key), "versions": versions})
    elif versions:
        shown = ", ".join(map(str, versions))
        sentence(console(), f"{hook} does not get {bucket_path(columns, key)} version {shown}")
    else:
        sentence(console(), f"nothing of {bucket_path(columns, key)} waits for {hook}")
    raise typer.Exit(int(not versions))
