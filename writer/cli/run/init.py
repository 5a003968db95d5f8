"""`headrace init`: writes a configuration to begin with, from what the broker and the registry say of topics."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer
import yaml
from rich.console import Console

from headrace.writer.config.loader import checked
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.kafka_client import Protocol
from headrace.writer.core.config_location import FILE
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.formats.value_rules import FormatName
from headrace.writer.output.command import Depends, command
from headrace.writer.output.report import Screen
from headrace.writer.output.tables import sentence
from headrace.writer.preflight.starter import settings, text, with_topics
from headrace.writer.preflight.topic_summary import Choices, TopicSummary, summarize_topic, unread_pipeline

# Characters of a pipeline's name.
_NAME_MAX = 63
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SecurityProtocol = Annotated[
    Protocol,
    typer.Option(
        "--security-protocol",
        case_sensitive=False,
        metavar="<protocol>",
        help="How brokers are reached: plaintext, ssl, sasl_plaintext or sasl_ssl.",
    ),
]
_Mechanism = Literal["plain", "scram-sha-256", "scram-sha-512"]
_SaslMechanism = Annotated[
    _Mechanism | None,
    typer.Option(
        "--sasl-mechanism",
        case_sensitive=False,
        metavar="<mechanism>",
        help="How the user logs in: plain, scram-sha-256 or scram-sha-512. Default: scram-sha-512.",
        show_default=False,
    ),
]
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


@dataclass(frozen=True)
class Logins:
    """How broker and registry are reached, as keys of the configuration. A password is a reference to it."""

    # Keys of kafka.security.
    security: dict[str, Any] = field(default_factory=dict)
    # user, password, ca_file
    registry: dict[str, Any] = field(default_factory=dict)


def choose_logins(
    security_protocol: _SecurityProtocol = "plaintext",
    sasl_mechanism: _SaslMechanism = None,
    username: Annotated[
        str | None, typer.Option("--username", help="The user for Kafka, with a sasl_ protocol.")
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="File with that user's password; the writer reads it, too.")
    ] = None,
    password_env: Annotated[
        str | None, typer.Option("--password-env", help="Instead: the environment variable with the password.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="PEM file with the authorities of the brokers' certificates.")
    ] = None,
    client_cert_file: Annotated[
        Path | None,
        typer.Option("--client-cert-file", help="PEM file with a key and its certificates, to show to brokers."),
    ] = None,
    registry_username: Annotated[
        str | None, typer.Option("--registry-username", help="The user for the registry (basic authentication).")
    ] = None,
    registry_password_file: Annotated[
        Path | None, typer.Option("--registry-password-file", help="File with that user's password.")
    ] = None,
    registry_password_env: Annotated[
        str | None,
        typer.Option("--registry-password-env", help="Instead: the environment variable with the password."),
    ] = None,
    registry_ca_file: Annotated[
        Path | None, typer.Option("--registry-ca-file", help="PEM file with the authority of its certificate.")
    ] = None,
) -> Logins:
    """Turn the options into keys of the configuration. Raises ConfigError where options do not fit each other."""
    password = _reference("--password", password_file, password_env)
    _check_broker(
        security_protocol,
        login=username is not None,
        password=password is not None,
        mechanism=sasl_mechanism is not None,
        files=ca_file is not None or client_cert_file is not None,
    )
    login = None
    if username is not None:
        login = _login_keys(sasl_mechanism or "scram-sha-512", username, password)
    security = {
        "login": login,
        "ca_file": _absolute(ca_file),
        "client_cert_file": _absolute(client_cert_file),
    }
    if security_protocol != "plaintext":
        security = {"protocol": security_protocol, **security}
    registry_password = _reference("--registry-password", registry_password_file, registry_password_env)
    registry = _registry_keys(registry_username, registry_password, registry_ca_file)
    return Logins(_without_nulls(security), _without_nulls(registry))


LoginOptions = Annotated[Logins, Depends(choose_logins)]


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
    logins: LoginOptions,
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
        security=logins.security,
        registry=_registry_settings(registry_url, registry_glue, logins, subjects),
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


def _registry_settings(url: str | None, glue: str | None, logins: Logins, subjects: str) -> dict[str, Any]:
    """Return the keys of the registry besides its URL. Raises ConfigError where there are some without a registry."""
    registry = dict(logins.registry)
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


def _login_keys(mechanism: _Mechanism, user: str, password: str | None) -> dict[str, Any]:
    if mechanism == "plain":
        return {"type": "plain", "user": user, "password": password}
    return {"type": "scram", "mechanism": mechanism, "user": user, "password": password}


def _registry_keys(username: str | None, password: str | None, ca_file: Path | None) -> dict[str, Any]:
    if (username is None) != (password is None):
        raise ConfigError(
            "--registry-username goes with --registry-password-file or --registry-password-env. Give both, or neither."
        )
    login = None
    if username is not None:
        login = {"type": "basic", "user": username, "password": password}
    return {"login": login, "ca_file": _absolute(ca_file)}


def _check_broker(protocol: Protocol, *, login: bool, password: bool, mechanism: bool, files: bool) -> None:
    """Raise ConfigError where the options of a login or of TLS do not fit the protocol."""
    if protocol.startswith("sasl_"):
        if not (login and password):
            raise ConfigError(
                f"--security-protocol {protocol} needs a login. Give --username, and --password-file or --password-env."
            )
    elif login or password or mechanism:
        raise ConfigError(
            f"--username, --password-file, --password-env and --sasl-mechanism do not fit --security-protocol "
            f"{protocol}. Give sasl_ssl or sasl_plaintext."
        )
    if files and not protocol.endswith("ssl"):
        raise ConfigError(
            f"--ca-file and --client-cert-file do not fit --security-protocol {protocol}. Give ssl or sasl_ssl."
        )


def _reference(option: str, file: Path | None, variable: str | None) -> str | None:
    """Return `${file:…}` or `${env:…}`, as the configuration refers to a secret; None where neither is given."""
    if file is not None and variable is not None:
        raise ConfigError(f"{option}-file and {option}-env name one password twice. Give one of them.")
    if variable is not None:
        if not _VARIABLE.fullmatch(variable):
            raise ConfigError(
                f"{option}-env takes the name of an environment variable, not the password. Write {option}-env NAME."
            )
        return f"${{env:{variable}}}"
    if file is None:
        return None
    path = str(file.absolute())
    if "}" in path:
        raise ConfigError(f"{option}-file {path} has a }} in its name, which ends a reference. Rename the file.")
    return f"${{file:{path}}}"


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _without_nulls(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}
