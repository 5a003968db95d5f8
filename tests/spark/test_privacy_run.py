"""A real run protects fields, with a keyring that driver and tasks read."""

import hmac
import json
import signal
import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.privacy.encryption import decrypt_text
from headrace.writer.privacy.keyring import Keyring, KeyringPlace, KeySource, read_keyring, write_keyring
from tests.support import canaries, oracle
from tests.support.spark_jvm import QUICK_START
from tests.support.writer_process import JAVA_OPTIONS, NOW, Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
TOKEN = "the-token-of-live-records"


def test_fields_are_protected_before_they_are_written(site: Site, topic: MakeTopic) -> None:
    name, source = topic(2), KeySource(KeyringPlace(str(site.root / "keys.json")))
    write_keyring(source, Keyring().with_new("hash").with_new("encrypt"))
    site.overrides["keys"] = {"file": source.place.file}
    clear = site.pipeline("clear", [name])
    lake = site.pipeline("events", [name], privacy={"fields": {"user_id": "hash", "url": "encrypt"}})
    site.fill(name, 200, broken=2)
    site.once()
    ring, place = read_keyring(source), "_topic, _partition, _offset"
    expected = {tuple(at): (user, url) for user, url, *at in oracle.rows(clear, f"user_id, url, {place}")}
    found = {tuple(at): (user, url) for user, url, *at in oracle.rows(lake, f"user_id, url, {place}")}
    assert found.keys() == expected.keys()
    assert len(found) > 100
    for at, (user, url) in found.items():
        was, page = expected[at]
        assert user == (was and hmac.digest(ring.hash_keys["h1"], str(was).encode(), "sha256").hex())
        assert (url and decrypt_text(str(url), ring.encryption_keys["k1"]).decode()) == page
    letters = oracle.rows(lake.with_name("events_dead_letters"), "value")
    assert letters
    assert all(bytes(value).startswith(b"hr1.k1.") for (value,) in letters)  # type: ignore[arg-type]
    secrets = [key.hex().encode() for key in (*ring.hash_keys.values(), *ring.encryption_keys.values())]
    for path in Path(site.root).rglob("*"):
        if path.is_file() and path.name != "keys.json":
            content = path.read_bytes()
            assert not any(bytes.fromhex(secret.decode()) in content or secret in content for secret in secrets), path


def test_no_byte_of_a_killed_run_and_of_its_screens_tells_a_canary(site: Site, topic: MakeTopic) -> None:
    """Against the same records without policies, which the search finds in files, previews and dead letters."""
    name = topic(1)
    sent(site, name, 48)
    settings: dict[str, Any] = {
        "event_time": {"field": "at", "max_age": "36500 d", "max_ahead": "36500 d"}, "raw": True,
        "memory": {"buffer": "4 KiB", "batch_records": 12}, "limits": {"max_failed_ratio": 1},
        "columns": {"key": "avro", "headers": "_headers"},
    }  # fmt: skip
    site.pipeline("clear", [name], **settings)
    site.once()
    del site.pipelines["clear"]
    policies = canaries.privacy("mixed") or {}
    del policies["fields"]["attempt"]
    site.pipeline("events", [name], privacy=policies, **settings)
    source = KeySource(KeyringPlace(str(site.root / "keys.json")))
    write_keyring(source, Keyring().with_new("hash").with_new("encrypt"))
    for folder in ("spark-events", "scratch"):
        (site.root / folder).mkdir()
    conf = {"eventLog.enabled": "true", "eventLog.dir": f"file://{site.root}/spark-events", "log.level": "INFO"}
    site.overrides = {
        "keys": {"file": source.place.file}, "http": {"port": 0, "expose_records": True, "token": TOKEN},
        "spark": {"conf": {JAVA_OPTIONS: QUICK_START, **{f"spark.{key}": value for key, value in conf.items()}}},
    }  # fmt: skip
    env = {"TMPDIR": f"{site.root}/scratch", "SPARK_LOCAL_DIRS": f"{site.root}/scratch"}
    site.once(env={**env, "HEADRACE_FAULT": "after_stage:1"}, code=-signal.SIGKILL)
    assert searched(site) == {"clear"}
    writer = site.start(env=env)
    try:
        writer.until(lambda: writer.commits() > 0)
        screens = list(shown(site, "events"))
        assert canaries.search(screens) == set()
        assert {"/metrics", "/", "/records?pipeline=events&at=assigned"} <= {place for place, _ in screens}
        writer.stop()
    finally:
        if writer.process.poll() is None:
            writer.kill()
    oracle.check(site.root / "lake" / "events", "events", site.ends(name))
    assert searched(site) == {"clear"}
    assert any((site.root / "spark-events").rglob("*"))
    site.pipeline("clear", [name], **settings)
    assert {hit.name.split()[0] for hit in canaries.search(said(site, "clear"))} == {"preview", "dlq"}


def sent(site: Site, name: str, count: int) -> None:
    """Send records with canaries, of two schemas: rows, broken ones, and some whose key is broken."""
    with SchemaRegistryClient({"url": site.registry_url}) as registry:
        ids = {
            known: registry.register_schema(f"{name}-{subject}", Schema(json.dumps(schema), "AVRO"))
            for known, subject, schema in ((1, "value", canaries.EVENT), (2, "later", canaries.WIDER),
                                           (5, "key", canaries.KEY))
        }  # fmt: skip
    head = {known: struct.pack(">bI", 0, schema_id) for known, schema_id in ids.items()}
    broken = {
        3: lambda value: value.replace(b"-text", b"\xfftext", 1), 4: lambda value: value[:-1],
        5: lambda value: value + canaries.STEM.encode(), 6: lambda _: canaries.STEM.encode(),
        7: lambda value: b"\0\0\xff\xff\xff" + value[5:],
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for at in range(count):
        known = 1 + at % 2
        value = head[known] + canaries.value(known, NOW - at * timedelta(hours=1), at)[5:]
        key = canaries.STEM.encode() if at % 12 == 11 else head[5] + canaries.key(at)[5:]
        change = broken.get(at % 12, lambda value: value)
        producer.produce(name, change(value), key, headers={canaries.STEM: canaries.STEM.encode()})
    assert producer.flush(30) == 0


def searched(site: Site) -> set[str]:
    """Return the files below the site that hold a canary or a key; `clear`: some of the tables of that pipeline do."""
    ring = read_keyring(KeySource(KeyringPlace(str(site.root / "keys.json"))))
    secrets = [*ring.hash_keys.values(), *ring.encryption_keys.values()]
    hits = canaries.search(canaries.files(site.root, ["keys.json"]), secrets)
    return {"clear" if hit.name.startswith("lake/clear") else hit.name for hit in hits}


def shown(site: Site, pipeline: str) -> Iterator[tuple[str, bytes]]:
    """Yield what a running writer shows, and what commands do."""
    url = json.loads((site.root / "checkpoints" / pipeline / "driver.json").read_text())["url"]
    records = [f"/records?pipeline={pipeline}&at={at}" for at in ("raw", "decoded", "assigned")]
    for path in ("/", "/status", "/metrics", "/buckets", *records):
        request = Request(url + path, headers={"Accept": "text/html", "Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=120) as answer:
            yield path, answer.read()
    yield from said(site, pipeline)


def said(site: Site, pipeline: str) -> Iterator[tuple[str, bytes]]:
    """Yield what commands say of a pipeline."""
    for words in (
        ("status", "--json"), ("preview", "--at", "raw", "--json"), ("preview", "--at", "decoded"),
        ("preview", "--at", "staged"), ("dlq", "list"), ("dlq", "show", "--values"),
    ):  # fmt: skip
        verb = words[:2] if words[0] == "dlq" else words[:1]
        result = CliRunner().invoke(app, [*verb, str(site.config), "--pipeline", pipeline, *words[len(verb) :]])
        assert result.exit_code == 0, (words, result.output, result.exception)
        yield " ".join(words), result.output.encode()
