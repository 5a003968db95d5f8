"""The deployment that release 0.1.0 left behind (tests/fixtures/make_lake.py): unpacked, and asked by commands.

All that has a name of its own in today's code stands in the tables below: what is renamed in the code is renamed here,
in one line, and the fixture stays as it is.
"""

import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.writing import Site
from writer.cli.main import app
from writer.core import retired
from writer.demo.devstack.events import encoder

_FIXTURES = Path(__file__).with_name("fixtures")
ARCHIVE, FACTS = _FIXTURES / "lake-0.1.0.tar.xz", _FIXTURES / "lake-0.1.0.json"
FORMATS = {"clicks": "delta", "installs": "parquet", "views": "delta", "visits": "parquet"}  # each with a topic
DIED, PAUSED = ("clicks", "installs"), ("views", "visits")
CONFIG, CLUSTER = "headrace.yaml", "headrace-cluster.yaml"  # the second: as it was while executors were scaled

# Keys of the fixture's configuration files → today's, such as "pipelines/*/seal/after"; `*` is the name of a pipeline.
CONFIG_KEYS: Mapping[str, str] = {
    old.replace(".", "/"): "/".join([*(retired.KEYS.get(part, part) for part in old.split(".")[:-1]), new])
    for old, new in retired.KEYS.items()
}

# Commands whose answers are compared: name → words. `{config}` and `{cluster}` are the files.
OF_THE_LAKE: Mapping[str, Sequence[str]] = {
    "audit": ("audit", "{config}", "--deep", "--json"),
    "buckets": ("buckets", "{config}", "--json"),
    "gaps": ("gaps", "list", "{config}", "--all", "--json"),
    "hooks": ("hooks", "list", "{config}", "--json"),
    **{f"dead letters of {name}": ("dlq", "list", "{config}", "--pipeline", name, "--json") for name in FORMATS},
}
OF_ALL: Mapping[str, Sequence[str]] = {
    "status": ("status", "{config}", "--json"),
    "doctor": ("doctor", "{config}", "--json"),
    "recovery": ("supervisor", "explain", "{config}", "--json"),
    "scaling": ("autoscaler", "explain", "{cluster}", "--json"),
}

# Key of today's answers → the release's. The tests speak of all answers in the release's keys.
ANSWER_KEYS: Mapping[str, str] = {
    "commits_waiting_for_side_files": "commits_waiting_for_redo",
    "dead_letter_table_rows_removed": "letters_removed",
    "dead_letter_table_rows_removed_by": "letters_removed_by",
    "enabled": "able",
    "failing": "trouble",
    "late_table": "late",
    "late_table_rows_removed_by": "late_removed_by",
    "level": "rung",
    "offset_commit_failures": "mirror_failures",
    "step_cpu_seconds": "room_cpu_seconds",
    "topic_partitions": "parts",
}

# Keys that are not compared: sentences, and what depends on the time of the question.
PASSED_OVER = frozenset({
    "why", "error", "said", "because", "says", "advice", "next",
    "at", "used", "rates", "seconds", "since_seconds", "source_age_seconds", "commit_age_seconds",
    "event_time_newest_age_seconds", "watermark_delay_seconds", "oldest_waiting_seconds",
})  # fmt: skip

_TIME = {"type": "long", "logicalType": "timestamp-millis"}
_OLD: dict[str, Any] = {
    "type": "record", "name": "Event", "namespace": "fixture",
    "fields": [
        {"name": "event_id", "type": "string"}, {"name": "event_time", "type": _TIME}, {"name": "n", "type": "int"},
    ],
}  # fmt: skip
_CAMPAIGN = {"name": "campaign", "type": ["null", "string"], "default": None}
SCHEMAS = {"old": _OLD, "new": {**_OLD, "fields": [*_OLD["fields"], _CAMPAIGN]}}  # ids are in the facts
PARTITIONS = 2
_DAY = datetime(2026, 11, 20, tzinfo=UTC)  # of all events
_AGED = timedelta(hours=2)  # of all files: older than table.orphan_age, younger than what Delta's clean-up removes


def facts() -> dict[str, Any]:
    """What the release said of the fixture, and where it lay then."""
    return dict(json.loads(FACTS.read_text()))


def between(start: str, end: str, count: int) -> list[datetime]:
    """So many instants from one time of the day on, before the other."""
    first, last = (_DAY + timedelta(hours=int(at[:2]), minutes=int(at[3:])) for at in (start, end))
    return [first + (last - first) * i / count for i in range(count)]


def send(
    bootstrap: str, topic: str, schema: str, schema_id: int, times: Sequence[datetime], *, first: int, broken: int = 0
) -> int:
    """Produce events numbered from `first` on, to the partitions in turn, then broken ones. Returns how many."""
    encode = encoder(SCHEMAS[schema], schema_id)
    events = [
        encode({"event_id": f"{topic}-{n}", "event_time": at, "n": n, "campaign": f"c{n % 3}"})
        for n, at in enumerate(times, first)
    ]
    values = [*events, *(value[:-1] for value in events[:broken])]
    producer = Producer({"bootstrap.servers": bootstrap})
    for i, value in enumerate(values):
        producer.produce(topic, value, partition=i % PARTITIONS)
    assert producer.flush(30) == 0
    return len(values)


def run(*words: str, code: int = 0) -> str:
    """Run a command in this process, which is faster than in one of its own. Returns what it said."""
    told = CliRunner().invoke(app, words, catch_exceptions=False)
    assert told.exit_code == code, told.output
    return told.stdout


def ask(root: Path, words: Sequence[str]) -> dict[str, Any]:
    """Ask a command of OF_THE_LAKE or OF_ALL. Returns its exit code, and its answer."""
    said = [word.format(config=root / CONFIG, cluster=root / CLUSTER) for word in words]
    told = CliRunner().invoke(app, said, catch_exceptions=False)
    keys = {**ANSWER_KEYS, "records": "letters"} if words[0] == "dlq" else ANSWER_KEYS
    return {"exit_code": told.exit_code, "answer": answer(told.stdout, keys)}


def answer(text: str, keys: Mapping[str, str] = ANSWER_KEYS) -> Any:
    """Read JSON that a command said, in the release's keys."""
    return json.loads(text, object_pairs_hook=lambda pairs: {keys.get(key, key): one for key, one in pairs})


@dataclass(frozen=True)
class Place:
    """Where a deployment lies, and the addresses that it knows."""

    root: str
    bootstrap: str
    registry_url: str
    hook_url: str

    def localised(self, text: str) -> str:
        """Return text of the fixture as it would be of this place."""
        for name, there in facts()["place"].items():
            text = text.replace(there, getattr(self, name))
        return text


def unpack(place: Place, *, servers: bool = True) -> Site:
    """Unpack the fixture, and let it speak of this place. `servers`: with the data of broker and registry."""
    root = Path(place.root)
    with tarfile.open(ARCHIVE) as archive:
        wanted = [one for one in archive if servers or not one.name.startswith("servers")]
        archive.extractall(root, wanted, filter="data")
    there, aged = facts()["place"]["root"].encode(), time.time() - _AGED.total_seconds()
    for path in (one for part in ("lake", "checkpoints") for one in (root / part).rglob("*")):
        if path.is_file() and there in (content := path.read_bytes()):
            assert path.suffix == ".json", f"{path} says where it lies, and is no text"
            path.write_text(place.localised(content.decode()))
        os.utime(path, (aged, aged))
    for name in (CONFIG, CLUSTER):
        told = yaml.safe_load(place.localised((root / name).read_text()))
        (root / name).write_text(yaml.safe_dump(_renamed(told)))
    told = yaml.safe_load((root / CONFIG).read_text())
    pipelines = told.pop("pipelines")
    return Site(root, place.bootstrap, place.registry_url, pipelines, told)


def _renamed(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with today's keys; a section whose name changes takes all that is in it along."""
    found: dict[str, Any] = {}
    for path, value in _leaves(told):
        name = path.split("/")[1] if path.startswith("pipelines/") else ""
        general = path.replace(f"/{name}/", "/*/", 1) if name else path
        old = max((key for key in CONFIG_KEYS if f"{general}/".startswith(f"{key}/")), key=len, default=general)
        *above, key = (CONFIG_KEYS.get(old, old) + general.removeprefix(old)).replace("*", name).split("/")
        section = found
        for part in above:
            section = section.setdefault(part, {})
        section[key] = f"{value} s" if general.startswith("autoscale/policy/") and general.endswith("_s") else value
    return found


def _leaves(told: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(told, dict) and told:
        for key, value in told.items():
            yield from _leaves(value, f"{at}/{key}" if at else key)
    else:
        yield at, told


def then(place: Place, name: str) -> Any:
    """Return what the release answered, as of this place."""
    return json.loads(place.localised(json.dumps(facts()["answers"][name])))


def now(place: Place, name: str) -> Any:
    """Return what today's code answers."""
    return ask(Path(place.root), {**OF_THE_LAKE, **OF_ALL}[name])


def differences(was: Any, found: Any, at: str = "") -> list[str]:
    """Say where an answer is another one than it `was`, as far as they are compared. Further keys are no difference."""
    match was, found:
        case (dict(), dict()):
            keys = sorted(was.keys() - PASSED_OVER)
            pairs = {f"{at}.{key}": (was[key], found.get(key, "no such key")) for key in keys}
        case (list(), list()) if len(was) == len(found):
            pairs = {f"{at}[{i}]": pair for i, pair in enumerate(zip(was, found, strict=True))}
        case _:
            return [] if was == found else [f"{at} was {was!r} and is {found!r}"]
    return [one for place, pair in pairs.items() for one in differences(*pair, place)]
