"""`headrace init`: writes a configuration to begin with, from what the broker and the registry say of topics."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import yaml

from writer.cli.start.logins import Logins, logins
from writer.config.loader import checked
from writer.core.config_location import FILE
from writer.core.errors import ConfigError
from writer.output.cli_options import options_of
from writer.output.tables import console, sentence
from writer.preflight.starter import settings, summary, text

# Characters of a pipeline's name.
_NAME_MAX = 63


@options_of(logins)
def init(
    bootstrap_servers: Annotated[
        str, typer.Option("--bootstrap-servers", help="The cluster: host:port, several separated by commas.")
    ],
    registry_url: Annotated[str, typer.Option("--registry-url", help="Base URL of the registry's Confluent API.")],
    topic: Annotated[
        list[str], typer.Option("--topic", help="A topic, for a pipeline and a table of its own; may be repeated.")
    ],
    output: Annotated[Path, typer.Option("--output", help="The file to write. It must not exist.")] = Path(FILE),
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            help="Where tables and checkpoints go: a folder, or s3://bucket/folder. Default: `lake` beside it.",
        ),
    ] = None,
    event_time: Annotated[
        str | None, typer.Option("--event-time", help="Field with the event time. Default: found in the sample.")
    ] = None,
    subjects: Annotated[
        str,
        typer.Option("--subjects", help="How producers name the registry's subjects: topic_name or topic_record_name."),
    ] = "topic_name",
    sample: Annotated[
        int, typer.Option("--sample", min=1, metavar="<int>", help="How many records of each topic to look at.")
    ] = 1_000,
    *,
    chosen: Logins,
) -> None:
    """Write a commented configuration from a broker and topics, with the wire format and event time of a sample.

    Reads Kafka and the registry, and writes the file: nothing else. An existing file stays as it is. Passwords come
    from files or environment variables, and the configuration refers to them.

    Exit codes: 0 written, 1 Kafka or the registry does not answer, 2 the file exists, or the records show no event
    time.
    """
    if output.exists():
        raise ConfigError(f"{output} exists, and stays as it is. Give another --output, or remove it.")
    folder = _lake_folder(lake, output)
    topics_by_pipeline = _pipeline_names(topic)
    registry = dict(chosen.registry)
    if subjects != "topic_name":
        registry["subjects"] = subjects
    pipelines = {
        name: {"topics": [topic_name], "event_time": {"field": event_time or "?"}}
        for name, topic_name in topics_by_pipeline.items()
    }
    starter = settings(
        bootstrap_servers, registry_url, folder, security=chosen.security, registry=registry, pipelines=pipelines
    )
    config = checked(starter, "what the options say")
    now = datetime.now(UTC)
    summaries = {name: summary(name, config, event_time, sample, now) for name in topics_by_pipeline}
    _write(output, text(starter, config, summaries))
    out = console()
    for name, pipeline in summaries.items():
        sentence(out, f"{name}: {pipeline.wire_reason}")
        sentence(out, f"{name}: event time {pipeline.field}, {pipeline.field_reason}")
    sentence(out, f"Wrote {output}. Next: headrace validate {output}")


def _lake_folder(lake: str | None, output: Path) -> str:
    """Return where tables go, without a slash at its end; a folder of this machine as an absolute path."""
    folder = (lake or str(output.absolute().parent / "lake")).rstrip("/")
    return folder if "://" in folder else str(Path(folder).absolute())


def _write(output: Path, configuration: str) -> None:
    """Write a new file. Raises ConfigError where it is there by now, or where it would be no configuration."""
    checked(yaml.safe_load(configuration), f"what {output} would be")
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(configuration)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}. Give another --output.") from error


def _pipeline_names(topics: list[str]) -> dict[str, str]:
    """Return the topics by the names of their pipelines. Raises ConfigError where two would have one name."""
    topics_by_name: dict[str, str] = {}
    for topic in dict.fromkeys(topics):
        name = re.sub(r"[^a-z0-9_-]+", "-", topic.lower()).strip("-_")[:_NAME_MAX] or "topic"
        if name in topics_by_name:
            raise ConfigError(
                f"topics {topics_by_name[name]} and {topic} would both be pipeline {name!r}. Give one at a time."
            )
        topics_by_name[name] = topic
    return topics_by_name
