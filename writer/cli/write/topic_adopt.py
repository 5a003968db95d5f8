"""`headrace topic`: what is said about a pipeline's topics by hand, because no look at Kafka can tell it."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from writer.errors import ConfigError
from writer.options import AsJson, OnePipeline

if TYPE_CHECKING:
    from writer.rooms.report import Source

_OFFSET = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d+)=(?P<offset>\d+)")

topic = typer.Typer(no_args_is_help=True, help="Say what became of a pipeline's topics.")


@topic.callback()
def _group() -> None:
    """Say what became of a pipeline's topics."""


@topic.command()
def adopt(
    config: Annotated[Path, typer.Argument(help="Configuration file (YAML), with the new cluster and topic names.")],
    pipeline: OnePipeline = None,
    renamed: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="old=new: the topic that the table knows as old is called new now. May be repeated."
        ),
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offsets", help="topic:partition=offset where to read on, for records with other offsets."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--offsets-of", help="Consumer group whose committed offsets say where to read on."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write it. Without, it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with topics that hold the same records under another id or name, as after a move to another cluster.

    Records that kept their offsets are read on where the table ends. For others, say where: the rows get a further
    incarnation, and records between the table's end and an offset before it come twice. Shows what it would do; writes
    one entry of the table's log with --yes. Whatever driver still runs is fenced by it.

    Exit codes: 0 shown or written, 1 a driver runs or Kafka does not answer, 2 it cannot be so.
    """
    from writer import adopting
    from writer.adopt import Asked
    from writer.file import load

    settings = load(config)
    name = settings.one(pipeline)
    wanted = Asked(_pairs(renamed or []), _offsets(offsets or []))
    now = datetime.now(UTC)
    raise typer.Exit(adopting.adopt(settings, name, wanted, group, write=yes, as_json=as_json, now=now))


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for old, sign, new in pairs:
        if not (old and sign and new):
            raise ConfigError(f"--map {old}{sign}{new} is no pair; write --map old=new")
    return {old: new for old, _, new in pairs}


def _offsets(given: Sequence[str]) -> dict["Source", int]:
    found = {}
    for text in given:
        if (match := _OFFSET.fullmatch(text)) is None:
            raise ConfigError(f"--offsets {text} is none; write --offsets topic:partition=offset")
        found[match["topic"], int(match["partition"])] = int(match["offset"])
    return found
