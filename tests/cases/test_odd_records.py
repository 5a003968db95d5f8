"""Records with every odd property that a real broker takes, in topics of odd names: each reader carries them on."""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from headrace.writer.config import loader
from headrace.writer.web import live_records
from tests.servers.produce import produce
from tests.support import oracle
from tests.support.kafka_batches import Header, Raw, Rec
from tests.support.kafka_times import expected_instant
from tests.support.read_commands import headrace
from tests.support.writer_process import NOW, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GOOD_MS = int(NOW.timestamp() * 1000)
CODECS = ["none", "gzip", "snappy", "zstd"]  # a broker takes no lz4 as Arrow frames it
TOKEN = "a token of some length"
ODD_TIMES = [
    -1, -2, -(2**63), 2**63 - 1, -62_135_600_400_000, 253_402_300_800_000, 1_795_000_000_000_000,
    1_795_000_000_000_000_000,
]  # fmt: skip
ODD_KEYS = [None, b"", b"\xff\xfe\0", "é\u202e".encode(), b"k" * 100_000]
ODD_VALUES = [None, b"", b"\0", b"\0\0\0\0\1", b"junk", b"\0\x7f\xff\xff\xfestray", b"\xff" * 500_000]
ODD_HEADERS: list[tuple[Header, ...]] = [
    ((b"trace", b"first"), (b"trace", b"last")),
    ((b"", b"of no name"), (b"trace", None)),
    ((b"\xff\xfe", b"\xff"), ("é\u202e\0".encode(), b"")),
    ((b"trace", b"many"),) * 10_000,
    ((b"huge", b"\xfe" * 900_000),),
]


def odd_records(value: bytes) -> list[Rec]:
    """Records that are odd in one thing each, around a value that is good."""
    sent = [(GOOD_MS, key, value, ()) for key in ODD_KEYS]
    sent += [(GOOD_MS, b"k", each, ()) for each in ODD_VALUES]
    sent += [(GOOD_MS, b"k", value, headers) for headers in ODD_HEADERS]
    return [Rec(0, time_ms, key, each, headers) for time_ms, key, each, headers in sent]


def send(site: Site, topic: str, records: list[Rec]) -> None:
    """Send each record as a batch of its own, of one codec after the other."""
    for number, record in enumerate(records):
        produce(site.bootstrap, topic, 0, Raw((record,), 0, 1, CODECS[number % len(CODECS)]))


def send_transactions(site: Site, topic: str, value: bytes) -> None:
    """Send a record that is committed and one that is aborted: four offsets with their markers."""
    producer = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": f"odd-{uuid4().hex}"})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, value, b"k", partition=0, timestamp=GOOD_MS)
        producer.flush(30)
        end(30)


def check_live_records(site: Site, pipeline: str) -> None:
    """Ask for all records of a pipeline as the page does."""
    answer = live_records.record_guard(loader.load(site.config))
    for step in ("raw", "decoded", "assigned"):
        reply = answer(f"/records?pipeline={pipeline}&at={step}&records=50", f"Bearer {TOKEN}")
        assert reply is not None
        assert reply[0] == HTTPStatus.OK, reply


def offsets(lake: Path, columns: str = "_offset, _kafka_time") -> dict[Any, Any]:
    return dict(oracle.rows(lake, columns))  # type: ignore[arg-type]


@pytest.mark.parametrize("reader", ["native", "spark"])
def test_odd_records_on_a_real_broker_are_accounted_for_and_every_command_shows_them(
    site: Site, topic: Callable[..., str], reader: str
) -> None:
    odd_name = topic(1, prefix="_.A-" * 60, **{"max.message.bytes": "2000000"})
    times_name = topic(1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    assert len(odd_name) == 249
    site.reader = reader
    site.overrides = {"http": {"port": 0, "expose_records": True, "token": TOKEN}}
    columns = {"key": "string", "headers": "_headers", "header_columns": {"tr": "trace"}, "undecodable": "null"}
    odd = site.pipeline("odd", [odd_name], raw=True, columns=columns)
    times = site.pipeline("times", [times_name], raw=True, columns=columns)
    ((_, value),) = site.values(odd_name, 1)
    ((_, time_value),) = site.values(times_name, 1)
    records = odd_records(value)
    send(site, odd_name, records)
    send_transactions(site, odd_name, value)
    send(site, times_name, [Rec(0, time_ms, b"k", time_value) for time_ms in ODD_TIMES])
    send(site, times_name, [Rec(0, time_ms, b"k", b"junk") for time_ms in ODD_TIMES])
    site.once()
    site.once()

    good = {offset for offset, record in enumerate(records) if record.value == value} | {len(records)}
    rows = offsets(odd, "_offset, tr")
    assert rows.keys() == good
    first_headers = len(ODD_KEYS) + len(ODD_VALUES)
    assert [rows[first_headers + number] for number in range(len(ODD_HEADERS))] == ["last", None, None, "many", None]
    letters = offsets(odd.with_name("odd_dead_letters"))
    assert letters.keys() == {at for at, record in enumerate(records) if record.value not in (value, None)}
    raw = offsets(odd.with_name("odd_raw"), "_offset, value")
    assert raw == {**{at: record.value for at, record in enumerate(records)}, len(records): value}

    odd_count = len(ODD_TIMES)
    instants = [expected_instant(time_ms) for time_ms in ODD_TIMES]
    assert offsets(times) == dict(enumerate(instants))
    assert offsets(times.with_name("times_dead_letters")) == dict(enumerate(instants, odd_count))
    assert offsets(times.with_name("times_raw")) == dict(enumerate([*instants, *instants]))

    for pipeline in ("odd", "times"):
        for words in (
            ("preview", "-n", 40), ("dlq", "list"), ("dlq", "show"), ("compact", "--yes"),
            ("compact", "--raw", "--yes"), ("audit",), ("status",), ("explain",), ("buckets",),
        ):  # fmt: skip
            named = () if words[0] == "status" else ("--pipeline", pipeline)
            assert "Error" not in headrace(*words, *named, site.config)
        replay = headrace("dlq", "replay", "--yes", "--pipeline", pipeline, site.config, code=1)
        assert "none became a row" in replay
        check_live_records(site, pipeline)
    assert offsets(odd, "_offset, tr") == rows, "a replay and a merge change nothing"
    for name in (odd_name, times_name):
        starter = site.root / f"{name[:9]}.yaml"
        headrace(
            "init", "--output", starter, "--bootstrap-servers", site.bootstrap, "--registry-url", site.registry_url,
            "--topic", name, "--lake", site.root / "other",
        )  # fmt: skip
        assert name in starter.read_text()
