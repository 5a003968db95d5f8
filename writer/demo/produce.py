"""Events for the demo while it stays up, from another terminal: `python -m writer.demo.produce`."""

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from confluent_kafka.schema_registry.error import SchemaRegistryError

from writer.embedded.events import SCHEMAS, produce
from writer.errors import HeadraceError
from writer.kafka import Cluster
from writer.registry import ConfluentRegistry

ANSWER_WITHIN = timedelta(seconds=5)
_NEWEST = {"clicks": "clicks_2"}


def main(
    bootstrap: Annotated[str, typer.Argument(help="Address of the broker.")],
    registry: Annotated[str, typer.Argument(help="URL of the schema registry.")],
    topic: Annotated[str, typer.Argument(help="A topic that exists.")],
    events: Annotated[int, typer.Argument(min=1, help="How many events.")],
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(SCHEMAS)}; by default as the topic is named.")] = "",
    hours: Annotated[int, typer.Option(min=1, help="Event times lie within so many hours before now.")] = 1,
    late: Annotated[int, typer.Option(min=0, help="So many of them nine hours behind.")] = 0,
    ahead: Annotated[int, typer.Option(min=0, help="So many of them a month in the future.")] = 0,
    broken: Annotated[int, typer.Option(min=0, help="So many more that nobody can decode.")] = 0,
) -> None:
    """Produce made-up clicks or installs, with event times up to now."""
    kind = kind or _NEWEST.get(topic, topic)
    if kind not in SCHEMAS:
        sys.exit(f"what to send to {topic!r}? Give --kind {' or '.join(SCHEMAS)}.")
    began = time.monotonic()
    try:
        Cluster(bootstrap, ANSWER_WITHIN).topics([topic])  # the producer would try for minutes
        ConfluentRegistry(registry).known(topic)
        made = produce(
            bootstrap, registry, topic, events, now=datetime.now(UTC), kind=kind, hours=hours, seed=time.time_ns(),
            late=late, ahead=ahead, broken=broken,
        )  # fmt: skip
    except HeadraceError as error:
        sys.exit(str(error))
    except KafkaException as error:
        sys.exit(f"{bootstrap} took no events for {topic}: {error.args[0].str()}")
    except SchemaRegistryError as error:
        sys.exit(f"{registry} took no schema for {topic}: {error}")
    total = sum(made.per_partition.values())
    typer.echo(f"{total:,} messages in {topic}, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    typer.run(main)
