"""Releases that really run: a driver and executors in pods, upgrades that carry on, and failed ones that go back.

Spark asks a real API server for its executors. Every pod is a process of this machine (`tests/servers/kubelet.py`).
"""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.charts import PLACES
from tests.deployed import DRIVER, Deployed, deployed, gone, node
from tests.servers.trino import trino
from tests.writing import Site

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1500)]
Json = dict[str, Any]
MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def release(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, registry_url: str, topic: MakeTopic
) -> Iterator[Deployed]:
    """A release that was installed and has carried what was there. What a test changes of it, it changes back."""
    site = Site(tmp_path_factory.mktemp("site"), bootstrap, registry_url)
    with node(tmp_path_factory.mktemp("node")) as place:
        one = deployed(place, site, topic(3), "lake")
        one.fill(2_000)
        try:
            one.helm("install", "--wait", "--timeout", "8m")
            one.until_carried()
            yield one
        except AssertionError as error:
            raise AssertionError(f"{error}\n{one.said()[-6000:]}") from None
        finally:
            gone(one)


def test_a_release_carries_events_on_executors_of_its_own(release: Deployed) -> None:
    driver, executors = release.driver(), release.pods("executor")
    assert release.ready(), "helm waited for it"
    assert len(executors) == 2
    for pod in executors:
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", driver["metadata"]["uid"]), "they go with the driver's pod"
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["serviceAccountName"] == f"{DRIVER}-executor"
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/decom.sh"]
        assert {v["name"] for v in spec["volumes"]} >= {"tmp", "lake", "spark-local-dir-scratch"}
        assert len(spec["topologySpreadConstraints"]) == 2
        assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    said = release.cluster.helm("test", "clicks", "-n", release.namespace, "--timeout", "5m", seconds=400)
    assert said.count("Succeeded") == 2, "validate, and status"
    release.cluster.api.delete(f"{PLACES['Pod'].format(release.namespace)}/{executors[0]['metadata']['name']}")
    release.fill(1_000)
    release.until_carried()
    release.until(lambda: len(release.pods("executor")) == 2, "an executor that is gone is replaced")


def test_the_number_of_executors_follows_what_the_driver_asks_for(release: Deployed) -> None:
    driver = release.cluster.api.get(f"{PLACES['StatefulSet'].format(release.namespace)}/{DRIVER}")
    template = driver["spec"]["template"]
    (container,) = template["spec"]["containers"]
    command = ["python", "/opt/headrace/source/tests/engines/in_cluster.py", "2", "4", "1"]
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    spec = {**template["spec"], "restartPolicy": "Never"}
    spec["containers"] = [{**{k: v for k, v in container.items() if k not in probes}, "args": command}]
    pods = PLACES["Pod"].format(release.namespace)
    made = release.cluster.api.create(pods, {"metadata": {"name": "scaled"}, "spec": spec})
    seen: set[int] = set()

    def over() -> bool:
        mine = made["metadata"]["uid"]
        owned = [p for p in release.pods("executor") if p["metadata"]["ownerReferences"][0]["uid"] == mine]
        seen.add(sum(pod["status"]["phase"] == "Running" for pod in owned))
        return release.cluster.api.get(f"{pods}/scaled")["status"]["phase"] in ("Succeeded", "Failed")

    release.until(over, "it has asked for all")
    said = release.node.said("scaled", "driver")
    found = [json.loads(line) for line in said.splitlines() if line.startswith('{"asked"')]
    assert found == [{"asked": n, "registered": n, "sum": 499500} for n in (2, 4, 1)], said[-6000:]
    assert {2, 4, 1} <= seen, "as pods, too"
    release.cluster.api.delete(f"{pods}/scaled")


def test_an_analyst_asks_trino(release: Deployed, tmp_path: Path) -> None:
    file, table = "/etc/headrace/pipelines.yaml", "delta.lake.clicks"
    told = ["ddl", file, "--engine", "trino", "--table", table, "--location", "local:///events"]
    ddl = release.inside("headrace", *told)
    assert "register_table" in ddl
    with trino(tmp_path / "trino", release.lake.parent) as server:
        without_notes = "\n".join(line for line in ddl.splitlines() if not line.startswith("--"))
        for statement in filter(None, map(str.strip, without_notes.split(";"))):
            server.ask(statement)
        once = "count(DISTINCT (_topic, _incarnation, _partition, _offset))"
        (found,) = server.ask(f"SELECT count(*), {once} FROM {table}").rows
    assert set(found) == {sum(release.site.ends(release.topic).values())}
    status = json.loads(release.inside("headrace", "status", file, "--json"))["pipelines"]["events"]
    assert (status["source"], status["lag"]["offsets"]) == ("driver", 0)


def test_an_upgrade_drains_and_goes_on_where_the_old_one_was(release: Deployed) -> None:
    before, starts, runs = release.driver(), release.starts(), release.runs()
    with release.filling():
        release.helm("upgrade", "--atomic", "--timeout", "8m", "--set", "image.tag=v2")
    after = release.driver()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["containers"][0]["image"] == "headrace:v2"
    release.fill(1_500)
    release.until_carried()
    assert release.starts() == starts + 1, "it began once"
    assert release.runs() == runs, "on the same checkpoint"


def no_such_image(_release: Deployed) -> tuple[Json | None, list[str]]:
    return None, ["--set", "image.tag=never-built"]


def cannot_commit(_release: Deployed) -> tuple[Json | None, list[str]]:
    return None, ["--set", "image.tag=cannot-commit"]


def no_such_broker(release: Deployed) -> tuple[Json | None, list[str]]:
    config = copy.deepcopy(release.config)
    config["kafka"] = {"bootstrap_servers": "127.0.0.1:9", "request_timeout": "2 s"}
    return config, ["--set", "upgradeCheck.enabled=false"]


@pytest.mark.parametrize("fault", [no_such_image, cannot_commit, no_such_broker])
def test_an_upgrade_that_does_not_commit_goes_back_by_itself(
    release: Deployed, fault: Callable[[Deployed], tuple[Json | None, list[str]]]
) -> None:
    config, flags = fault(release)
    image = release.driver()["spec"]["containers"][0]["image"]
    with release.filling():
        said = release.helm("upgrade", "--atomic", "--timeout", "180s", *flags, code=1, config=config, seconds=900)
    assert "release clicks failed, and has been rolled back due to atomic being set" in said
    assert release.driver()["spec"]["containers"][0]["image"] == image
    assert release.ready()
    release.fill(1_000)
    release.until_carried()


def test_an_upgrade_with_a_wrong_file_leaves_the_old_driver_alone(release: Deployed) -> None:
    before = release.driver()["metadata"]["uid"]
    config = copy.deepcopy(release.config)
    config["pipelines"]["events"]["event_time"]["field"] = "no_such_field"
    said = release.helm("upgrade", "--atomic", "--timeout", "180s", code=1, config=config, seconds=900)
    assert "pre-upgrade hooks failed" in said
    assert release.driver()["metadata"]["uid"] == before
    release.fill(1_000)
    release.until_carried()


def test_spark_asked_for_nothing_that_its_account_may_not(release: Deployed) -> None:
    """And for all that it may, as far as a driver that ends while its role is there does."""
    name = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{release.namespace}/roles/{DRIVER}"
    (rule,) = release.cluster.api.get(name)["rules"]
    release.cluster.api.delete(f"{PLACES['Pod'].format(release.namespace)}/{DRIVER}-0")
    release.until(lambda: release.driver() and release.ready(), "another driver")
    asked = release.cluster.asked_by(DRIVER)
    assert asked == {(verb, "pods") for verb in rule["verbs"]}
    assert release.cluster.refused_to(DRIVER) == set()
    assert release.cluster.asked_by(f"{DRIVER}-executor") == set()


def test_leases_move_into_kubernetes_and_back_and_their_epoch_goes_on(release: Deployed) -> None:
    api = release.cluster.api
    place = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/{DRIVER}-events"
    assert api.find(place) is None
    before = epoch(release)
    release.helm("upgrade", "--atomic", "--timeout", "8m", "--set", "supervisor.lease=kubernetes")
    held = api.get(place)["spec"]
    assert held["holderIdentity"]
    assert held["leaseTransitions"] == epoch(release) == before + 1
    said = release.inside("headrace", "recover", "explain", "/etc/headrace/pipelines.yaml", "--json")
    assert json.loads(said)["events"]["lease"]["epoch"] == before + 1
    release.until(lambda: api.get(place)["spec"]["renewTime"] > held["renewTime"], "it is renewed")
    api.delete(place)
    release.until(lambda: api.find(place), "its holder puts it anew")
    assert api.get(place)["spec"]["leaseTransitions"] == before + 1
    release.fill(1_000)
    release.until_carried()
    release.helm("upgrade", "--atomic", "--timeout", "8m")
    assert epoch(release) == before + 2
    assert api.get(place)["spec"]["leaseTransitions"] == before + 1, "nobody holds it any more"
    release.fill(1_000)
    release.until_carried()
    gone_first = {("get", "leases"), ("update", "leases")}  # helm takes the rights away before the pod that has them
    assert release.cluster.refused_to(DRIVER) <= gone_first


def epoch(release: Deployed) -> int:
    """The lease under which the newest start was ordered."""
    starts = [said for said in oracle.replay(release.lake).commits if said["kind"] == "start"]
    return int(starts[-1]["lease"])
