"""The verbs `audit` and `dlq` of the command."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from writer.options import AsJson, ConfigFile, OnePipeline, Pipelines

if TYPE_CHECKING:
    from writer.config import Config
    from writer.ledger.letters import Selection

dlq = typer.Typer(no_args_is_help=True, help="Dead letters: list them, look at them, carry them through once more.")

_Outcome = Annotated[
    Literal["dead_letter", "quarantined"] | None, typer.Option("--outcome", help="Only these.", show_default=False)
]
_Reason = Annotated[str | None, typer.Option("--reason", help="Only where the reason has this text in it.")]
_Topic = Annotated[str | None, typer.Option("--topic", help="Only of this topic.")]
_Partition = Annotated[int | None, typer.Option("--partition", help="Only of this partition.")]
_Offsets = Annotated[str | None, typer.Option("--offsets", help="Only from START to before END: 100:200.")]
_SchemaId = Annotated[int | None, typer.Option("--schema-id", help="Only with this schema id.")]
_Since = Annotated[str | None, typer.Option("--since", help="Only written to Kafka at or after this time.")]
_Until = Annotated[str | None, typer.Option("--until", help="Only written to Kafka before this time.")]
_Json = Annotated[bool, typer.Option("--json", help="JSON, for a machine.")]


def audit(
    config: ConfigFile,
    pipeline: Pipelines = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only commits from this version (120) or time (2026-11-20T05:00Z) on."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every file: count rows and distinct offsets, find what is missing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that every offset is accounted for: once in the table or the dead letters, or known to hold nothing.

    From the lake alone, without Kafka, while the writer runs or not.

    Exit codes: 0 it adds up, 1 it does not, or a table cannot be read, 2 configuration.
    """
    from writer.file import load
    from writer.surface import audit as verb
    from writer.surface.lines import console

    settings = load(config)
    names = settings.chosen(pipeline)
    raise typer.Exit(verb.run(settings, names, since=since, deep=deep, as_json=as_json, console=console()))


@dlq.command("list")
def list_(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    outcome: _Outcome = None,
    reason: _Reason = None,
    topic: _Topic = None,
    partition: _Partition = None,
    offsets: _Offsets = None,
    schema_id: _SchemaId = None,
    since: _Since = None,
    until: _Until = None,
    as_json: _Json = False,
) -> None:
    """List dead letters by outcome, topic, schema and reason. Reads the lake only.

    Exit codes: 0 shown, 1 the table is not there or cannot be read, 2 configuration.
    """
    from writer.surface import dlq as verb
    from writer.surface.lines import console

    settings, name = _opened(config, pipeline)
    chosen = _selection(outcome, reason, topic, partition, offsets, schema_id, since, until)
    raise typer.Exit(verb.listed(name, settings, chosen, as_json=as_json, out=console()))


@dlq.command()
def show(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    outcome: _Outcome = None,
    reason: _Reason = None,
    topic: _Topic = None,
    partition: _Partition = None,
    offsets: _Offsets = None,
    schema_id: _SchemaId = None,
    since: _Since = None,
    until: _Until = None,
    letters: Annotated[int, typer.Option("-n", "--letters", min=1, help="How many.")] = 20,
    values: Annotated[
        bool, typer.Option("--values", help="Show what is in them, too: it may be about people.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Show dead letters one by one: where they stood, why they are no rows, their keys.

    Exit codes: 0 shown, 1 the table is not there or cannot be read, 2 configuration.
    """
    from writer.registry import source
    from writer.surface import dlq as verb
    from writer.surface.lines import console

    settings, name = _opened(config, pipeline)
    chosen = _selection(outcome, reason, topic, partition, offsets, schema_id, since, until)
    schemas = source(settings.registry)
    raise typer.Exit(
        verb.shown(name, settings, chosen, schemas, limit=letters, values=values, as_json=as_json, out=console())
    )


@dlq.command()
def replay(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    outcome: _Outcome = None,
    reason: _Reason = None,
    topic: _Topic = None,
    partition: _Partition = None,
    offsets: _Offsets = None,
    schema_id: _SchemaId = None,
    since: _Since = None,
    until: _Until = None,
    as_json: _Json = False,
) -> None:
    """Carry dead letters through the writer once more, by today's schemas and configuration, exactly once.

    What becomes a row leaves the dead letters in the same commit; what fails again stays, with its new reason. May be
    killed, repeated, and run beside the writer, which goes on.

    Exit codes: 0 done, 1 Kafka's registry or the storage does not answer, 2 configuration.
    """
    from writer.registry import source
    from writer.surface import dlq as verb
    from writer.surface.lines import console

    settings, name = _opened(config, pipeline)
    chosen = _selection(outcome, reason, topic, partition, offsets, schema_id, since, until)
    schemas, now = source(settings.registry), datetime.now(UTC)
    raise typer.Exit(verb.replayed(name, settings, chosen, schemas, now=now, as_json=as_json, out=console()))


def join(app: typer.Typer) -> None:
    """Hang the verbs into the command."""
    app.command()(audit)
    app.add_typer(dlq, name="dlq")


def _opened(path: Path, pipeline: str | None) -> "tuple[Config, str]":
    from writer.file import load

    settings = load(path)
    return settings, settings.one(pipeline)


def _selection(
    outcome: str | None,
    reason: str | None,
    topic: str | None,
    partition: int | None,
    offsets: str | None,
    schema_id: int | None,
    since: str | None,
    until: str | None,
) -> "Selection":
    from writer.ledger.letters import Selection

    return Selection(
        outcome, reason, topic, partition, _span(offsets), schema_id,
        time_of("--since", since), time_of("--until", until),
    )  # fmt: skip


def _span(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, _, end = text.partition(":")
    try:
        found = int(start or 0), int(end) if end else 2**63 - 1
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no range; write 100:200", param_hint="--offsets") from error
    return found


def time_of(option: str, text: str | None) -> datetime | None:
    """Read a time from the command line; UTC where it names no zone. Raises BadParameter."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-11-20T05:00Z", param_hint=option) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
