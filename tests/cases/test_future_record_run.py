"""A record that a real broker keeps with a date of 2099, or of 1970, holds no seal, and makes no lag lie."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.demo.devstack.events import SCHEMAS, encoder, generate
from tests.support import oracle
from tests.support.read_commands import headrace, write
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
YEAR_2099_MS = 4_070_908_800_000
IDLE_AFTER_S = 10
WITHIN_S = 120  # for a seal: a start, a minute that is over, and a machine that is busy


def encode_event(site: Site, topic: str) -> Callable[[datetime], bytes]:
    """Register the schema of the topic's values. Returns what encodes an event of an instant."""
    with SchemaRegistryClient({"url": site.registry_url}) as registry:
        schema_id = registry.register_schema(f"{topic}-value", Schema(json.dumps(SCHEMAS["clicks"]), "AVRO"))
    encode = encoder(SCHEMAS["clicks"], schema_id)
    ((_, event),) = generate("clicks", 1, now=datetime.now(UTC))
    return lambda at: encode({**event, "event_time": at})


def lags(site: Site) -> list[dict[str, Any]]:
    """Return what the status says of each partition's lag."""
    (pipeline,) = json.loads(headrace("status", "--json", site.config))["pipelines"].values()
    partitions: list[dict[str, Any]] = pipeline["lag"]["partitions"]
    return partitions


def send_until(condition: Callable[[], object], send: Callable[[], None], writer: Writer) -> None:
    """Send a record each second until something is so."""

    def is_so() -> bool:
        send()
        time.sleep(1)
        return bool(condition())

    writer.until(is_so, WITHIN_S)


@pytest.mark.parametrize("stamp", ["2099", "seconds"])
def test_a_partition_that_is_quiet_is_idle_whatever_date_its_record_has(
    site: Site, topic: Callable[..., str], stamp: str
) -> None:
    name = topic(2, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    event_of = encode_event(site, name)
    lake = site.pipeline(
        "events", [name], commit={"max_delay": "3 s"},
        event_time={"field": "event_time", "max_age": "1 d"},
        bucket={"type": "event_time", "width": "1 min"},
        seal={"idle_timeout": f"{IDLE_AFTER_S} s", "out_of_orderness": "0 s", "after": None},
    )  # fmt: skip
    began = datetime.now(UTC)
    stamp_ms = YEAR_2099_MS if stamp == "2099" else int(began.timestamp())
    write(site.bootstrap, name, [(0, b"k", event_of(began - timedelta(minutes=10)), stamp_ms)])

    def send_now() -> None:
        now = datetime.now(UTC)
        write(site.bootstrap, name, [(1, b"k", event_of(now), int(now.timestamp() * 1000))])

    writer = site.start()
    send_until(lambda: "bucket_sealed" in writer.output(), send_now, writer)
    assert "reason=watermark" in next(line for line in writer.output().splitlines() if "bucket_sealed" in line)
    assert "closed until: never yet" not in headrace("buckets", site.config)
    for partition in lags(site):
        assert partition["seconds"] is None or 0 <= partition["seconds"] < WITHIN_S, partition
    writer.stop()
    site.once()
    oracle.check(lake, "events", site.ends(name))
