"""Produces events for the running demo from another terminal: `python -m headrace.writer.demo.produce`."""

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from confluent_kafka.schema_registry.error import SchemaRegistryError

from headrace.writer.clients.kafka import Cluster
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.events import SCHEMAS, Encoding, produce
from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.demo.devstack.protobuf_encoding import ProtobufEncoding
from headrace.writer.demo.devstack.value_encoding import AvroEncoding, JsonEncoding
from headrace.writer.demo.value_formats import VALUE_FORMATS, ValueFormatName
from headrace.writer.schemas.registry import ConfluentRegistry
from headrace.writer.schemas.registry_client import without_user

ANSWER_WITHIN = timedelta(seconds=5)
# Less than seal.out_of_orderness, so the bucket of such an event is open.
ON_TIME = timedelta(minutes=1)
_NEWEST = {"clicks": "clicks_2"}


def main(
    bootstrap: Annotated[str, typer.Argument(help="Address of the broker.")],
    topic: Annotated[str, typer.Argument(help="The topic; see --partitions if it does not exist yet.")],
    events: Annotated[int, typer.Argument(min=1, help="How many events.")],
    value_format: Annotated[
        ValueFormatName, typer.Option("--format", help="Format of the values; json has no schema.")
    ] = "avro",
    registry: Annotated[str | None, typer.Option(help="URL of the schema registry, for avro and protobuf.")] = None,
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(SCHEMAS)}; by default as the topic is named.")] = "",
    hours: Annotated[
        int,
        typer.Option(
            min=0,
            help="Event times lie within so many hours before now: those of buckets that are closed are late, too. "
            "By default within the last minute, which is on time.",
        ),
    ] = 0,
    late: Annotated[
        int, typer.Option(min=0, help="So many of them nine hours behind: late where that bucket is closed.")
    ] = 0,
    ahead: Annotated[int, typer.Option(min=0, help="So many of them a month in the future.")] = 0,
    broken: Annotated[int, typer.Option(min=0, help="So many more that cannot be decoded.")] = 0,
    partitions: Annotated[
        int, typer.Option(min=0, help="Create the topic with so many partitions, unless it exists.")
    ] = 0,
) -> None:
    """Produce made-up clicks or installs, with event times up to now."""
    kind = kind or _NEWEST.get(topic, topic)
    if kind not in SCHEMAS:
        sys.exit(f"produce: what shall go to {topic!r}? Give --kind {' or '.join(SCHEMAS)}.")
    encoding = _encoding(value_format, registry)
    began = time.monotonic()
    try:
        _check_servers(bootstrap, topic, partitions, encoding)
        produced = produce(
            bootstrap,
            encoding,
            topic,
            events,
            now=datetime.now(UTC),
            kind=kind,
            hours=hours or ON_TIME / timedelta(hours=1),
            seed=time.time_ns(),
            late=late,
            ahead=ahead,
            broken=broken,
        )
    except HeadraceError as error:
        sys.exit(f"produce: {error}")
    except KafkaException as error:
        sys.exit(f"produce: {bootstrap} took no events for {topic}: {error.args[0].str()}")
    except SchemaRegistryError as error:
        sys.exit(f"produce: {without_user(registry or '')} took no schema for {topic}: {error}")
    total = sum(produced.per_partition.values())
    typer.echo(f"{total:,} events in {topic}, {time.monotonic() - began:.1f} s")


def _check_servers(bootstrap: str, topic: str, partitions: int, encoding: Encoding) -> None:
    """Create the topic where `partitions` are given. Raises HeadraceError for what does not answer or is not there."""
    cluster = Cluster(bootstrap, ANSWER_WITHIN)
    # Without this check the producer would try for minutes.
    cluster.brokers()
    if partitions:
        create_topics(bootstrap, {topic: partitions})
    cluster.topics([topic])
    if isinstance(encoding, AvroEncoding | ProtobufEncoding):
        ConfluentRegistry(encoding.registry_url).topic_schemas(topic)


def _encoding(value_format: ValueFormatName, registry: str | None) -> Encoding:
    """Return how events become values. Exits where that and the registry contradict each other."""
    if value_format == "json":
        if registry is not None:
            sys.exit("produce: JSON has no schemas here, so leave out --registry.")
        return JsonEncoding()
    if registry is None:
        name = VALUE_FORMATS[value_format].title
        sys.exit(f"produce: {name} needs a registry for its schema: give --registry URL, or --format json.")
    if value_format == "protobuf":
        return ProtobufEncoding(registry)
    return AvroEncoding(registry)


if __name__ == "__main__":
    typer.run(main)
