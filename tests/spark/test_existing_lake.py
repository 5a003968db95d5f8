"""What release 0.1.0 left behind goes on with today's code: its lake, its checkpoints, its supervisor, its broker.

One deployment for all tests of the module. Its steps are fixtures that build on each other; a test looks at one.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.schema_registry import SchemaRegistryClient

from recovery.checkpoints.walk_back import RebuiltOffsets, walk_back
from tests import oracle
from tests.existing import (
    CLUSTER,
    DIED,
    FORMATS,
    OF_ALL,
    PAUSED,
    Place,
    answer,
    between,
    differences,
    facts,
    now,
    run,
    send,
    then,
    unpack,
)
from tests.fault.test_walk_back import forget
from tests.process import say
from tests.scaled import autoscale
from tests.servers.scripted import Reply, Scripted, scripted
from tests.supervising import Supervised, supervise
from tests.writing import Site
from writer.clients.kafka import Cluster
from writer.config.loader import load
from writer.demo.devstack.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NEW = 9  # events that are sent to each topic, one of them late; and a broken one
Answer = dict[str, Any]


@dataclass(frozen=True)
class Deployment:
    """The servers, and all that the release kept."""

    place: Place
    site: Site
    hook: Scripted

    def lake(self, name: str) -> Path:
        return self.site.root / "lake" / name

    def run(self, *words: str) -> str:
        """Run a command: its words, with the file after the verb's name."""
        at = 2 if words[0] in ("hooks", "gaps") else 1
        return run(*words[:at], str(self.site.config), *words[at:])

    def pipelines(self, *words: str) -> Answer:
        return dict(answer(self.run(*words, "--json"))["pipelines"])

    def send(self) -> None:
        """Send events to every topic, that go on where the release stopped."""
        told = facts()
        for name in FORMATS:
            times = [*between("13:05", "13:50", NEW - 1), *between("06:30", "06:31", 1)]
            first, schema_id = told["next_event"][name], told["schema_ids"][name]["new"]
            send(self.site.bootstrap, name, "new", schema_id, times, first=first, broken=1)

    def frontier(self, name: str) -> dict[oracle.Source, int]:
        return oracle.frontier_of(self.lake(name), name)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    root = tmp_path_factory.mktemp("existing")
    stack = Stack(root / "servers")
    with scripted(lambda _: Reply(200)) as hook:
        place = Place(str(root), stack.broker.bootstrap, stack.registry.url, hook.url)
        site = unpack(place)
        with stack:
            yield Deployment(place, site, hook)


@pytest.fixture(scope="module")
def answered(deployment: Deployment) -> dict[str, Answer]:
    """What commands say before anything else happens."""
    return {name: now(deployment.place, name) for name in OF_ALL}


@dataclass(frozen=True)
class Step:
    """A run, and what was there before it."""

    said: str
    before: dict[str, dict[oracle.Source, int]]  # pipeline → frontier
    after: dict[str, dict[oracle.Source, int]]
    buckets: Answer  # before it


@pytest.fixture(scope="module")
def continued(deployment: Deployment, answered: dict[str, Answer]) -> Step:
    """More events come, and the writer runs until it has read all."""
    assert answered
    before = {name: deployment.frontier(name) for name in FORMATS}
    buckets = deployment.pipelines("buckets")
    deployment.send()
    said = deployment.site.once(code=5)
    return Step(said, before, {name: deployment.frontier(name) for name in FORMATS}, buckets)


@pytest.fixture(scope="module")
def filled(deployment: Deployment, continued: Step) -> list[Answer]:
    """The backfill that was broken off is run again."""
    assert continued.said
    return [answer(line) for line in say("backfill", str(deployment.site.config), "--yes", "--json").splitlines()]


@dataclass(frozen=True)
class Supervision:
    """A supervisor that has run."""

    said: str
    status: Answer


@pytest.fixture(scope="module")
def supervised(deployment: Deployment, filled: list[Answer]) -> Supervision:
    """Nothing is paused any more, and a supervisor starts the writer."""
    assert filled
    deployment.run("resume")
    running = supervise(deployment.site)
    try:
        running.until(lambda: _carried(deployment, running))
        status = answer(json.dumps(running.told("/status")))["pipelines"]
        assert running.stop() == 0, running.said()
        return Supervision(running.said(), status)
    finally:
        if running.process.poll() is None:
            running.kill()


def _carried(deployment: Deployment, running: Supervised) -> bool:
    behind = [name for name in FORMATS if deployment.frontier(name) != deployment.site.ends(name)]
    return not behind and running.times("pipeline_started") == len(FORMATS)


def test_broker_and_registry_are_those_of_the_release(deployment: Deployment) -> None:
    with SchemaRegistryClient({"url": deployment.place.registry_url}) as registry:
        for name, ids in facts()["schema_ids"].items():
            assert registry.get_latest_version(f"{name}-value").schema_id == ids["new"]
            assert registry.get_version(f"{name}-value", 1).schema_id == ids["old"]
    assert {s[0] for s in deployment.site.ends(*FORMATS)} == set(FORMATS)


@pytest.mark.parametrize("name", OF_ALL)
def test_a_command_answers_as_the_release_did(deployment: Deployment, answered: dict[str, Answer], name: str) -> None:
    assert differences(then(deployment.place, name), answered[name]) == []


@pytest.mark.parametrize("name", DIED)
def test_after_the_death_nothing_is_lost_and_nothing_is_twice(
    deployment: Deployment, continued: Step, name: str
) -> None:
    assert f"batch_skipped pipeline={name}" in continued.said, "the commit was in the table, and Spark did not know"
    oracle.check(deployment.lake(name), name, deployment.site.ends(name))
    dead_letters = deployment.lake(name).with_name(f"{name}_dead_letters")
    below, was = continued.before[name], facts()["rows"]
    assert oracle.identities(dead_letters, below)[0] == was[dead_letters.name][0] + 2, (
        "redo has added those of the last commit"
    )
    count, which = oracle.identities(deployment.lake(name), below)
    if FORMATS[name] == "delta":
        assert [count, which] == was[name]
    else:
        assert count == was[name][0] + 9, "readers see the files of the last commit only now"
    assert oracle.rows(deployment.lake(name), "count(campaign)") != [(0,)]


def test_a_paused_pipeline_commits_nothing(continued: Step) -> None:
    for name in PAUSED:
        assert f"pipeline {name!r} is paused since" in continued.said
        assert f"pipeline_started pipeline={name}" not in continued.said
        assert continued.after[name] == continued.before[name]


@pytest.mark.parametrize("name", DIED)
def test_what_an_outbox_had_is_delivered(deployment: Deployment, continued: Step, name: str) -> None:
    (was,) = then(deployment.place, "hooks")["answer"]["pipelines"][name]
    (known,) = deployment.pipelines("hooks", "list")[name]
    assert continued.said
    assert was["waiting"]
    told = [one.json() for one in deployment.hook.asked]
    came = [(one["bucket"][0], one["version"]) for one in told if one["pipeline"] == name]
    assert {(one["bucket"][0], one["version"]) for one in was["waiting"]} <= set(came)
    assert len(came) == len(set(came)), "none was told twice"
    assert known["waiting"] == []


@pytest.mark.parametrize("name", DIED)
def test_a_bucket_that_late_rows_reopened_is_sealed_with_the_next_manifest(
    deployment: Deployment, supervised: Supervision, continued: Step, name: str
) -> None:
    assert supervised.said
    before = {one["bucket"][0]: one for one in continued.buckets[name]["buckets"]}
    after = {one["bucket"][0]: one for one in deployment.pipelines("buckets")[name]["buckets"]}
    reopened = [bucket for bucket, one in before.items() if one["state"] == "reopened"]
    assert reopened
    for bucket in reopened:
        assert after[bucket]["state"] == "sealed"
        assert after[bucket]["version"] == before[bucket]["version"] + 1


def test_a_backfill_that_was_broken_off_is_ended_by_the_next(
    deployment: Deployment, filled: list[Answer], continued: Step
) -> None:
    assert continued.said
    assert [gap["state"] for one in filled if one["event"] == "ended" for gap in one["gaps"]] == ["done", "done"]
    for name in DIED:
        oracle.check(deployment.lake(name), name)
        assert not list(deployment.lake(name).glob("_headrace/gaps/*/claim-*")), "the claim was taken over, and let go"
    assert {one["state"] for each in deployment.pipelines("gaps", "list", "--all").values() for one in each} == {
        "lost", "done",
    }  # fmt: skip


def test_a_supervisor_waits_for_the_lease_and_remembers(supervised: Supervision) -> None:
    assert "lease_awaited" in supervised.said, "the one before did not release it"
    assert "holder=localhost/" in supervised.said
    for name in FORMATS:
        assert f"lease_acquired pipeline={name} epoch=2" in supervised.said
        one = supervised.status[name]
        assert (one["lease_epoch"], len(one["state"]["attempts"]), one["failure"]["row"]) == (2, 1, "killed")


def test_in_the_end_all_adds_up(deployment: Deployment, supervised: Supervision) -> None:
    assert "batch_committed pipeline=visits" in supervised.said, "what was rewound is read again"
    for name in FORMATS:
        oracle.check(deployment.lake(name), name, deployment.site.ends(name))
        starts = [said for said in oracle.replay(deployment.lake(name)).commits if said["kind"] == "start"]
        assert starts[-1]["lease"] == 2
    for name in DIED:
        deployment.run("compact", "--pipeline", name, "--yes")
        # What tasks of others on this machine spilled is none of ours.
        words = ("vacuum", str(deployment.site.config), "--pipeline", name, "--yes", "--json")
        told = answer(say(*words, TMPDIR=deployment.place.root))
        gone = {one["why"] for place in told["locations"] for one in place["objects"]}
        assert gone >= {"manifest", *(["removed"] if FORMATS[name] == "delta" else [])}
    account = deployment.pipelines("audit", "--deep")
    assert {name: one["adds_up"] for name, one in account.items()} == dict.fromkeys(FORMATS, True)
    for name in FORMATS:
        oracle.check(deployment.lake(name), name, deployment.site.ends(name))


@pytest.fixture
def fresh(deployment: Deployment, tmp_path: Path) -> Deployment:
    """Lake and checkpoints as the release left them, beside the same servers."""
    place = replace(deployment.place, root=str(tmp_path))
    return replace(deployment, place=place, site=unpack(place, servers=False))


def test_the_autoscaler_goes_on_with_what_it_decided(fresh: Deployment) -> None:
    was = json.loads((fresh.site.root / "checkpoints" / "clicks" / "autoscaler.json").read_text())
    told = yaml.safe_load((fresh.site.root / CLUSTER).read_text())
    site = Site(fresh.site.root, fresh.site.bootstrap, fresh.site.registry_url, told.pop("pipelines"), told)
    with autoscale(site) as scaler:
        scaler.until(lambda: scaler.told()["decision"])
        known = answer(json.dumps(scaler.told()))
        assert scaler.stop() == 0, scaler.said()
    assert known["events"][::-1][: len(was["events"])] == was["events"], "the newest come first"
    assert known["decision"]["executors"] == was["memory"]["desired"] == 2


def test_copies_of_checkpoints_can_be_gone_on_from(fresh: Deployment) -> None:
    copies = sorted((fresh.site.root / "checkpoints").glob("*/copies/*"))
    assert {copy.parts[-3] for copy in copies} == set(FORMATS)
    for name in FORMATS:
        copy = next(one for one in reversed(copies) if one.parts[-3] == name)
        words = ("doctor", "--checkpoint", str(copy), "--bootstrap-servers", fresh.site.bootstrap, "--json")
        (told,) = answer(run(*words))
        assert (told["leads_to"], told["halt"]) == (None, False)


def test_a_table_that_forgot_its_frontier_is_gone_on_with_by_a_copy(fresh: Deployment) -> None:
    """The rung of recovery that copies are kept for: the checkpoint itself is torn, too."""
    site, lake, name = fresh.site, fresh.lake("views"), "views"
    had = fresh.frontier(name)
    fresh.run("resume", "--pipeline", name)
    forget(lake)
    run = max((site.root / "checkpoints" / name).glob("0*"))
    for planned in (run / "offsets").iterdir():
        planned.write_bytes(b"")
    site.once("--pipeline", name, code=3)
    config = load(site.config)
    found = walk_back(config, name, Cluster(config.kafka.bootstrap_servers, config.kafka.request_timeout))
    assert isinstance(found, RebuiltOffsets), found
    assert "copies" in found.place
    assert {(part.topic, part.partition): at for part, at in found.offsets.items()} == had
    site.once("--pipeline", name)
    oracle.check(lake, name, site.ends(name))
