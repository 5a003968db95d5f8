"""Releases that really run: a driver and executors in pods, upgrades that carry on, and failed ones that go back.

Spark asks a real API server for its executors. Every pod is a process of this machine (`tests/servers/kubelet.py`).
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import oracle
from tests.charts import PLACES
from tests.deployed import DRIVER, Deployed, deployed, gone, node
from tests.servers.kubelet import Kubelet
from tests.servers.kubernetes import Cluster
from tests.writing import Site

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1500)]
Json = dict[str, Any]
MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Kubelet]]:
    with node(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture
def release(
    place: tuple[Cluster, Kubelet], site: Site, topic: MakeTopic, request: pytest.FixtureRequest
) -> Iterator[Deployed]:
    """A release that was installed and has carried what was there."""
    name = f"lake-{abs(hash(request.node.name)) % 10**6}"
    one = deployed(place, site, topic(3), name)
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


def test_an_upgrade_drains_and_goes_on_where_the_old_one_was(release: Deployed) -> None:
    before = release.driver()
    release.fill(1_500)
    release.helm("upgrade", "--atomic", "--timeout", "8m", "--set", "image.tag=v2")
    after = release.driver()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["containers"][0]["image"] == "headrace:v2"
    release.fill(1_500)
    release.until_carried()
    commits = [said for said in oracle.replay(release.lake).commits if said["kind"] in ("start", "batch")]
    starts = [said for said in commits if said["kind"] == "start"]
    assert len(starts) == 2, "each driver began once"
    assert {said["run"] for said in commits} == {1}, "on the same checkpoint"


BAD_CONFIG = "the old driver is not even stopped"


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
    release.fill(1_000)
    said = release.helm("upgrade", "--atomic", "--timeout", "150s", *flags, code=1, config=config, seconds=900)
    assert "release clicks failed, and has been rolled back due to atomic being set" in said
    assert release.driver()["spec"]["containers"][0]["image"] == "headrace:v1"
    assert release.ready()
    release.fill(1_000)
    release.until_carried()


def test_an_upgrade_with_a_wrong_file_leaves_the_old_driver_alone(release: Deployed) -> None:
    before = release.driver()["metadata"]["uid"]
    config = copy.deepcopy(release.config)
    config["pipelines"]["events"]["event_time"]["field"] = "no_such_field"
    said = release.helm("upgrade", "--atomic", "--timeout", "150s", code=1, config=config, seconds=900)
    assert "pre-upgrade hooks failed" in said
    assert release.driver()["metadata"]["uid"] == before
    release.fill(1_000)
    release.until_carried()


def test_spark_asked_for_nothing_that_its_account_may_not_and_for_all_that_it_may(release: Deployed) -> None:
    release.cluster.api.delete(f"{PLACES['Pod'].format(release.namespace)}/{DRIVER}-0")
    release.until(lambda: release.driver() and release.ready(), "another driver")
    asked = release.cluster.asked_by(DRIVER)
    assert asked
    assert {resource for _, resource in asked} == {"pods"}
    assert release.cluster.asked_by(f"{DRIVER}-executor") == set()
    print(sorted(asked))
