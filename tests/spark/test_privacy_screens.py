"""Whatever command or endpoint looks at protected records, none shows a value: by each policy and its source."""

import ast
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import typer
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.privacy.keyring import Keyring, KeyringPlace, KeySource, write_keyring
from tests.support import canaries
from tests.support.writer_process import NOW, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MakeTopic = Callable[..., str]
ROOT = Path(__file__).parents[2]
TOKEN = "the-token-of-live-records"
_RECORDS = 36


@dataclass(frozen=True)
class Call:
    """One way to call a command: the words behind the configuration file."""

    words: tuple[str, ...] = ()
    of_pipeline: bool = True  # it takes --pipeline


def calls(*each: str, of_pipeline: bool = True) -> list[Call]:
    """Return calls, each by its words."""
    return [Call(tuple(words.split()), of_pipeline) for words in each]


LOOKS = ("", "--json")
# By command. What writes is called without --yes first; those that begin or end the writer come last.
COMMANDS: dict[str, list[Call]] = {
    "audit": calls("--deep", "--deep --json"),
    "buckets": calls(*LOOKS),
    "ddl": calls("--engine trino", "--engine spark --json"),
    "diff": calls("--other-pipeline clear --samples 50", "--other-pipeline clear --samples 50 --json"),
    "dlq list": calls(*LOOKS),
    "dlq show": calls("--values -n 50", "--values --json -n 50", *LOOKS),
    "explain": [*calls(*LOOKS), Call(("--version", "3"))],
    "hooks list": calls(*LOOKS),
    "hooks run": calls(*LOOKS),
    "size": calls("--sample 50", "--sample 50 --json"),
    "preview": calls(*(f"--at {at} -n 50{more}" for at in ("raw", "decoded", "assigned", "staged")
                       for more in ("", " --json"))),
    "schema plan": calls(*LOOKS),
    "status": calls("--json", of_pipeline=False),
    "validate": calls("--sample 50", "--sample 50 --json"),
    "keys check": calls(*LOOKS, of_pipeline=False),
    "keys rotate": calls("", of_pipeline=False),
    "privacy list": calls(*LOOKS),
    "privacy release": calls("--path *", "--path * --json"),
    "gaps list": calls("--all", "--all --json"),
    "gaps open": calls("--reason test"),
    "doctor": calls(*LOOKS),
    "supervisor explain": calls(*LOOKS),
    "autoscaler explain": calls(*LOOKS),
    "table adopt": calls(""),
    "table accept": calls(""),
    "topic adopt": calls(""),
    "schema accept": calls("--id 1"),
    "vacuum": calls("", "--yes"),
    "retention": calls(""),
    "seal": calls("", "--until 2026-11-20T10:00Z --yes"),
    "wait": calls("--sealed 2026-11-20T01 --timeout 1s"),
    "compact": calls("", "--yes --json"),
    "dlq replay": calls("", "--yes", "--yes --json"),
    "reprocess": calls("--buckets 2026-11-19T00..2026-11-20T12 --from raw",
                       "--buckets 2026-11-19T00..2026-11-20T12 --from raw --yes"),
    "backfill": calls("", "--yes"),
    "delete-rows": [Call(("--where", "share = 12")), Call(("--where", "share = 12", "--dead-letters", "--yes"))],
    "rewind": calls("--to 3", "--to 3 --json"),
    "convert": calls(""),
    "promote": calls("--shadow {root}/nowhere"),
    "limit": calls(*LOOKS),
    "pause": calls("--reason test --json"),
    "resume": calls("--json"),
    "reload": calls("--timeout 1s", of_pipeline=False),
}  # fmt: skip
# What no pipeline with policies is behind, or what is run in another way, and why.
OTHERS = {
    "run": "the writer of this test; all that it says is searched",
    "supervisor run": "runs `run` and passes on what it says",
    "shadow": "runs `run` for another table",
    "autoscaler run": "asks for rates and executors, and sees no record",
    "test": "shows records of a test file, which its author wrote",
    "init": "is before there is a configuration with policies",
    "demo": "makes its own records", "bench": "makes its own records", "chaos": "makes its own records",
    "simulate": "has no records",
    "hooks skip": "names a bucket that the caller gives",
    "gaps show": "needs a gap; shows ranges of offsets as `gaps list` does",
    "gaps close": "needs a gap; shows ranges of offsets as `gaps list` does",
}  # fmt: skip
ENDPOINTS = {"/", "/status", "/metrics", "/healthz", "/readyz", "/rolloutz", "/buckets"}


def verbs(command: Any, words: str = "") -> Iterator[str]:
    """Yield the words of each command."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield words
    for name, one in (inner or {}).items():
        yield from verbs(one, f"{words} {name}".strip())


def test_every_command_is_looked_at_or_says_why_not() -> None:
    assert set(verbs(typer.main.get_command(app))) == COMMANDS.keys() | OTHERS.keys()


def test_every_endpoint_is_looked_at() -> None:
    tree = ast.parse((ROOT / "writer" / "web" / "endpoints.py").read_text())
    patterns = [node.value for node in ast.walk(tree) if isinstance(node, ast.MatchValue)]
    assert {pattern.value for pattern in patterns if isinstance(pattern, ast.Constant)} == ENDPOINTS
    assert sorted(path.stem for path in (ROOT / "writer" / "web").glob("*.py")) == [
        "__init__", "batch_metrics", "endpoints", "http_server", "live_records", "metric_types", "metrics_catalogue",
        "metrics_export", "page", "pipeline_metrics", "store_metrics", "table_metrics",
    ], "a module that answers requests is looked at here"  # fmt: skip


# --- records ----------------------------------------------------------------------------------------------------------

KINDS: Mapping[str, Any] = {"HASH": "hash", "ENCRYPT": "encrypt", "DROP": "drop", "MASK": {"mask": 4}}
COLUMNS = {"_key": "clear", "_headers": "hash"}


def worded(part: Any, source: str) -> Any:
    """Return a schema whose words are of another source: `tag`, `attribute`; `path`: it has none."""
    if isinstance(part, list):
        return [worded(one, source) for one in part]
    if not isinstance(part, dict):
        return part
    tags = part.get("confluent:tags")
    rest = {key: worded(value, source) for key, value in part.items() if key != "confluent:tags"}
    if tags is None or source == "path":
        return rest
    return {**rest, "pii": tags[0]} if source == "attribute" else {**rest, "confluent:tags": tags}


def policies(source: str, policy: str) -> dict[str, Any]:
    """Return a pipeline's policies: `mixed`, or one for all tags, by a source."""
    kinds = KINDS if policy == "mixed" else dict.fromkeys(KINDS, policy)
    if source == "path":
        tags = {
            field["name"]: field["confluent:tags"][0] for field in canaries.EVENT["fields"] if "confluent:tags" in field
        }
        return {"fields": {**COLUMNS, "_key.user": "hash", "inner": "encrypt",
                           **{name: kinds[tag] for name, tag in tags.items()}}}  # fmt: skip
    return {"tags": kinds, "fields": COLUMNS, **({"attributes": ["pii"]} if source == "attribute" else {})}


PIPELINES = {
    f"{source}-{policy}": (source, policy)
    for source, policy in (("tag", "hash"), ("tag", "encrypt"), ("tag", "drop"), ("tag", "mixed"),
                           ("attribute", "mixed"), ("path", "mixed"))
}  # fmt: skip


def sent(site: Site, name: str, source: str) -> None:
    """Send records with canaries: rows of two schemas, broken ones, values of no wire format, broken keys."""
    schemas = {1: canaries.EVENT, 2: canaries.WIDER, 5: canaries.KEY}
    subjects = {1: "value", 2: "later", 5: "key"}
    with SchemaRegistryClient({"url": site.registry_url}) as registry:
        ids = {
            number: registry.register_schema(
                f"{name}-{subjects[number]}", Schema(json.dumps(worded(schema, source)), "AVRO")
            )
            for number, schema in schemas.items()
        }
    head = {number: struct.pack(">bI", 0, schema_id) for number, schema_id in ids.items()}
    broken: dict[int, Callable[[bytes], bytes]] = {
        3: lambda value: value.replace(b"-text", b"\xfftext", 1), 4: lambda value: value[:-1],
        5: lambda value: value + canaries.STEM.encode(), 6: lambda _: f'{{"mail": "{canaries.STEM}"}}'.encode(),
        7: lambda value: b"\0\0\xff\xff\xff" + value[5:], 8: lambda _: f"{canaries.STEM}-junk".encode(),
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for at in range(_RECORDS):
        number = 1 if source == "path" else 1 + at % 2
        value = head[number] + canaries.value(number, NOW - at * timedelta(hours=1) / 2, at)[5:]
        key = canaries.STEM.encode() if at % 12 == 11 else head[5] + canaries.key(at)[5:]
        change = broken.get(at % 12, lambda value: value)
        producer.produce(name, change(value), key, headers={canaries.STEM: canaries.STEM.encode()})
    assert producer.flush(30) == 0


def settled(site: Site, topic: MakeTopic) -> None:
    """Configure a pipeline for each policy and source, and one without policies over the same records."""
    topics = {source: topic(1) for source in ("tag", "attribute", "path")}
    for source, name in topics.items():
        sent(site, name, source)
    settings: dict[str, Any] = {
        "event_time": {"field": "at", "max_age": "36500 d", "max_ahead": "36500 d"}, "raw": True,
        "limits": {"max_failed_ratio": 1}, "columns": {"key": "avro", "headers": "_headers"},
    }  # fmt: skip
    for name, (source, policy) in PIPELINES.items():
        site.pipeline(name, [topics[source]], privacy=policies(source, policy), **settings)
    site.pipeline("clear", [topics["tag"]], **settings)
    ring = KeySource(KeyringPlace(str(site.root / "keys.json")))
    write_keyring(ring, Keyring().with_new("hash").with_new("encrypt"))
    site.overrides = {
        "keys": {"file": ring.place.file}, "http": {"port": 0, "expose_records": True, "token": TOKEN},
    }  # fmt: skip


def said(site: Site, pipeline: str, app: typer.Typer, faults: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield what each command says of a pipeline, with what it raises. `faults`: calls that are none, which it adds."""
    for verb, each in COMMANDS.items():
        for call in each:
            words = [word.replace("{root}", str(site.root)) for word in call.words]
            named = ["--pipeline", pipeline] if call.of_pipeline else []
            done = CliRunner().invoke(app, [*verb.split(), str(site.config), *named, *words])
            is_fault = isinstance(done.exception, (LookupError, TypeError, AssertionError, AttributeError))
            if is_fault or "Usage:" in done.output:
                faults.append(f"{verb} {words}: {done.exception!r} {done.output}")
            yield f"{verb} {' '.join(words)}", f"{done.output}\n{done.exception!r}\n{done.exception}".encode()


def answered(url: str, pipeline: str) -> Iterator[tuple[str, bytes]]:
    """Yield what each endpoint answers."""
    records = [f"/records?pipeline={pipeline}&at={at}&records=50" for at in ("raw", "decoded", "assigned")]
    for path in (*sorted(ENDPOINTS), *records):
        request = Request(url + path, headers={"Accept": "text/html", "Authorization": f"Bearer {TOKEN}"})
        try:
            with urlopen(request, timeout=120) as answer:
                yield path, answer.read()
        except HTTPError as error:
            yield path, error.read()


def test_no_command_and_no_endpoint_shows_a_protected_value(site: Site, topic: MakeTopic) -> None:
    """Beside a pipeline without policies over the same records, whose values the search finds on the same screens."""
    settled(site, topic)
    run = site.once()
    writer = site.start()
    try:
        writer.until(lambda: "pipeline_started" in writer.output())
        driver = site.root / "checkpoints" / "clear" / "driver.json"
        writer.until(driver.exists)
        url = json.loads(driver.read_text())["url"]
        for pipeline in PIPELINES:
            assert canaries.search(answered(url, pipeline)) == set(), pipeline
        hits = {hit.name for hit in canaries.search(answered(url, "clear"))}
        assert {path.partition("?")[0] for path in hits} == {"/records"}
        run += writer.stop()
    finally:
        if writer.process.poll() is None:
            writer.kill()
    assert canaries.search([("run", run.encode())]) == set()
    faults = list[str]()
    shown = set[tuple[str, str]]()
    for pipeline in PIPELINES:
        shown |= {(hit.name, pipeline) for hit in canaries.search(said(site, pipeline, app, faults))}
    assert (shown, faults) == (set(), [])
    found = {hit.name.split()[0] for hit in canaries.search(said(site, "clear", app, faults))}
    assert found >= {"preview", "dlq", "validate"}, "the search would find them"
