"""`headrace init`: writes a configuration to begin with, from what the broker and the registry say of topics."""

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
import yaml
from rich.console import Console

from headrace.writer.cli.run.init_logins import BrokerOptions, RegistryLoginOptions, TokenLoginOptions
from headrace.writer.config.loader import checked
from headrace.writer.config.pipelines import Config
from headrace.writer.core.config_location import FILE
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.formats.value_rules import FormatName
from headrace.writer.output.command import command
from headrace.writer.output.report import Screen
from headrace.writer.output.tables import sentence
from headrace.writer.preflight.proposal.starter import settings, text, with_topics
from headrace.writer.preflight.proposal.topic_summary import Choices, TopicSummary, summarize_topic, unread_pipeline

# Characters of a pipeline's name.
_NAME_MAX = 63

_Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="<format>",
        help="Format of the values: avro, json_schema, json (columns are proposed) or raw (values are kept as they "
        "are); may be repeated. Default: found in the sample.",
        show_default=False,
    ),
]
_RegistryUrl = Annotated[
    str | None,
    typer.Option("--registry-url", help="Base URL of the registry's Confluent API. Needed where values name schemas."),
]
_RegistryGlue = Annotated[
    str | None,
    typer.Option(
        "--registry-glue",
        help="Name of an AWS Glue Schema Registry, such as default-registry. Credentials and region come by the "
        "standard chain of AWS.",
    ),
]


@command(
    exits={
        0: "written",
        1: "Kafka or the registry does not answer",
        2: "the file exists, or the records show no format or no event time",
    }
)
def init(
    bootstrap_servers: Annotated[
        str, typer.Option("--bootstrap-servers", help="The cluster: host:port, several separated by commas.")
    ],
    topic: Annotated[
        list[str], typer.Option("--topic", help="A topic, for a pipeline and a table of its own; may be repeated.")
    ],
    registry_url: _RegistryUrl = None,
    registry_glue: _RegistryGlue = None,
    output: Annotated[Path, typer.Option("--output", help="The file to write. It must not exist.")] = Path(FILE),
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            help="Where tables and checkpoints go: a folder, or s3://bucket/folder. Default: `lake` beside it.",
        ),
    ] = None,
    formats: _Formats = None,
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
    broker_access: BrokerOptions,
    token_login: TokenLoginOptions,
    registry_login: RegistryLoginOptions,
    screen: Screen,
) -> None:
    """Write a commented configuration from a broker and topics, with formats, columns and event time of a sample.

    Reads Kafka and the registry, and writes the file: nothing else. An existing file stays as it is. Passwords come
    from files or environment variables, and the configuration refers to them.
    """
    if output.exists():
        raise ConfigError(f"{output} exists, and stays as it is. Give another --output, or remove it.")
    folder = _lake_folder(lake, output)
    topics_by_pipeline = _pipeline_names(topic)
    starter = settings(
        bootstrap_servers,
        registry_url,
        folder,
        security=broker_access.security(token_login),
        registry=_registry_settings(registry_url, registry_glue, registry_login, subjects),
        pipelines={name: unread_pipeline(topic_name) for name, topic_name in topics_by_pipeline.items()},
    )
    summaries = _summarize_topics(starter, topics_by_pipeline, event_time, _check_formats(formats or []), sample)
    starter = with_topics(starter, summaries)
    _write(output, text(starter, checked(starter, "what the topics show"), summaries))
    _show_summaries(screen.out, summaries)
    sentence(screen.out, f"Wrote {output}. Next: headrace validate {output}")


def _summarize_topics(
    starter: dict[str, Any],
    names: Collection[str],
    event_time: str | None,
    formats: tuple[FormatName, ...],
    sample: int,
) -> dict[str, TopicSummary]:
    """Return what samples of the topics show, by the names of their pipelines."""
    config = checked(starter, "what the options say")
    choices = Choices(event_time, formats)
    now = datetime.now(UTC)
    return {
        name: summarize_topic(name, config, partial(_complete, starter, name), choices, sample, now) for name in names
    }


def _show_summaries(out: Console, summaries: Mapping[str, TopicSummary]) -> None:
    """Say what the records of each topic show."""
    for name, pipeline in summaries.items():
        sentence(out, f"{name}: {pipeline.formats_reason}")
        if pipeline.columns:
            sentence(out, f"{name}: {plural(pipeline.column_count, 'proposed column')} of JSON, to be edited")
        sentence(out, f"{name}: event time {pipeline.field}, {pipeline.field_reason}")


def _complete(starter: dict[str, Any], name: str, topic: TopicSummary) -> Config:
    """Return the configuration of one pipeline with what its topic shows."""
    return checked(with_topics(starter, {name: topic}), f"what {topic.topic} shows")


def _registry_settings(url: str | None, glue: str | None, login: Mapping[str, Any], subjects: str) -> dict[str, Any]:
    """Return the keys of the registry besides its URL. Raises ConfigError where there are some without a registry."""
    registry = dict(login)
    if registry and url is None:
        raise ConfigError("--registry-username and the like are of a registry with a URL. Give --registry-url.")
    if glue is not None:
        registry["glue"] = glue
    if subjects != "topic_name":
        if url is None and glue is None:
            raise ConfigError("--subjects is of a registry. Give --registry-url or --registry-glue.")
        registry["subjects"] = subjects
    return registry


def _check_formats(formats: list[str]) -> tuple[FormatName, ...]:
    """Return the formats, each once. Raises ConfigError for an unknown one, and for `raw` beside another."""
    names = tuple(dict.fromkeys(formats))
    for name in names:
        if name not in get_args(FormatName):
            raise ConfigError(f"--format {name} is none of {', '.join(get_args(FormatName))}. Give one of these.")
    if "raw" in names and len(names) > 1:
        raise ConfigError("--format raw takes every value as it is, so no other format stands beside it. Give one.")
    return cast(tuple[FormatName, ...], names)


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
