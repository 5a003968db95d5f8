"""Releases that really run: a driver and executors in pods, upgrades that carry on, and failed ones that go back.

Spark asks a real API server for its executors. Every pod is a process of this machine (`tests/servers/kubelet.py`).
"""

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import deploy_page
from tests.engines.deploy_page import Walk
from tests.servers.trino import trino
from tests.support import oracle
from tests.support.chart_release import (
    DRIVER,
    NEXT,
    PIPELINE,
    REPOSITORY,
    SLOT,
    Release,
    node,
    prepare_namespace,
    prepare_release,
    uninstall,
)
from tests.support.event_load import Load
from tests.support.helm_chart import PLACES
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1500)]
Json = dict[str, Any]
MakeTopic = Callable[..., str]


_IMAGE, INSTALL, QUERY = deploy_page.blocks("Install")  # docker/prove.sh is about the image


@pytest.fixture(scope="module")
def release(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, registry_url: str, topic: MakeTopic
) -> Iterator[Release]:
    """A release that was installed as the page says, and has carried what was there.

    What a test changes of it, it changes back.
    """
    site = Site(tmp_path_factory.mktemp("site"), bootstrap, registry_url)
    with node(tmp_path_factory.mktemp("node")) as url:
        one = prepare_release(url, site, topic(3), "lake")
        one.fill(2_000)
        somebody = Walk(one, tmp_path_factory.mktemp("walk") / "there")
        namespace, secret, install, _ = INSTALL
        try:
            somebody.run(namespace)
            prepare_namespace(one)
            somebody.run(secret)
            began_s = time.monotonic()
            assert "headrace carries clicks." in somebody.run(install)
            one.start_s = time.monotonic() - began_s
            one.wait_for_commits()
            yield one
        except AssertionError as error:
            raise AssertionError(f"{error}\n{one.output()[-6000:]}") from None
        finally:
            uninstall(one)


def is_an_executor(pod: Json, driver: Json) -> None:
    """Check that a pod has the template, and goes with the driver's pod."""
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Pod", driver["metadata"]["uid"])
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["serviceAccountName"] == f"{DRIVER}-executor"
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/decom.sh"]
    assert {v["name"] for v in spec["volumes"]} >= {"tmp", "lake", "spark-local-dir-scratch"}
    assert len(spec["topologySpreadConstraints"]) == 2
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


def test_a_release_carries_events_on_executors_of_its_own(release: Release) -> None:
    assert release.ready(), "helm waited for it"
    driver, executors = release.driver(), release.executors()
    assert 1 <= len(executors) <= 3
    for pod in executors:
        is_an_executor(pod, driver)


def test_the_number_of_executors_follows_the_autoscaler(release: Release) -> None:
    driver = release.driver()
    autoscaler = driver["spec"]["initContainers"][-1]
    assert (autoscaler["name"], autoscaler["restartPolicy"]) == ("autoscaler", "Always"), "a native sidecar"
    release.until(lambda: release.has(1), "of the two of the start one is left, as nothing arrives")
    (executor,) = release.executors()
    release.cluster.api.delete(f"{PLACES['Pod'].format(release.namespace)}/{executor['metadata']['name']}")
    release.until(
        lambda: release.has(1) and release.executors()[0]["metadata"]["uid"] != executor["metadata"]["uid"],
        "an executor that is gone is replaced",
    )
    with Load(release.site, release.topic, SLOT * 1.8):
        release.until(lambda: release.has(3), "more arrives than one executor or two can carry")
        for pod in release.executors():
            is_an_executor(pod, driver)
    release.until(lambda: release.has(1), "nothing arrives any more")
    release.wait_for_commits()
    status = release.executor_status()
    assert (status["failed_tasks"], status["refused"]) == (0, None)
    assert {decision["decision"] for decision in status["decisions"]} >= {"up", "down"}
    assert release.driver()["metadata"]["uid"] == driver["metadata"]["uid"], "the driver never noticed"
    assert release.node.output(f"{DRIVER}-0", "autoscaler").count("autoscaler_listening") == 1, "nor did it"


def test_the_page_leads_from_an_install_to_a_query_in_trino(release: Release, tmp_path: Path) -> None:
    somebody = Walk(release, tmp_path / "there")
    assert somebody.run(INSTALL[-1]).count("Succeeded") == 2, "helm test: validate, and status"
    tell, ask = QUERY
    with trino(tmp_path / "trino", release.lake.parent) as server:
        somebody.run(tell, trino=server)
        text = somebody.run(ask, trino=server)
    produced = sum(release.site.ends(release.topic).values())
    assert text == f"{produced},{produced}\n", "each record once"
    status, explain, _forward = (command for block in deploy_page.blocks("Operate") for command in block)
    pipeline_document = json.loads(somebody.run(f"{status} --json"))["pipelines"][PIPELINE]
    assert (pipeline_document["source"], pipeline_document["lag"]["offsets"]) == ("driver", 0)
    assert PIPELINE in somebody.run(explain)


def test_an_upgrade_drains_and_goes_on_where_the_old_one_was(release: Release, tmp_path: Path) -> None:
    upgrade, _reload = deploy_page.blocks("Upgrade")
    (command,) = upgrade
    before, starts, runs = release.driver(), release.starts(), release.runs()
    with release.filling():
        Walk(release, tmp_path / "there").run(command)
    after = release.driver()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["containers"][0]["image"] == f"{REPOSITORY}:{NEXT}"
    release.fill(1_500)
    release.wait_for_commits()
    assert release.starts() == starts + 1, "it began once"
    assert release.runs() == runs, "on the same checkpoint"


def no_such_image(_release: Release) -> tuple[Json | None, list[str]]:
    # Nothing starts for it: the check before the upgrade waits for the image, and the driver is not even stopped.
    return None, ["--set", "image.tag=never-built", "--timeout", "45s"]


def cannot_commit(release: Release) -> tuple[Json | None, list[str]]:
    return None, ["--set", "image.tag=cannot-commit", "--timeout", release.deadline]


def no_such_broker(release: Release) -> tuple[Json | None, list[str]]:
    config = copy.deepcopy(release.config)
    config["kafka"] = {"bootstrap_servers": "127.0.0.1:9", "request_timeout": "2 s"}
    return config, ["--set", "upgradeCheck.enabled=false", "--timeout", release.deadline]


@pytest.mark.parametrize("fault", [no_such_image, cannot_commit, no_such_broker])
def test_an_upgrade_that_does_not_commit_goes_back_by_itself(
    release: Release, fault: Callable[[Release], tuple[Json | None, list[str]]]
) -> None:
    config, flags = fault(release)
    before = release.driver()
    with release.filling():
        output = release.helm("upgrade", "--atomic", *flags, code=1, config=config, seconds=1200)
    assert "release clicks failed, and has been rolled back due to atomic being set" in output
    after = release.driver()
    assert after["spec"]["containers"][0]["image"] == before["spec"]["containers"][0]["image"]
    assert (after["metadata"]["uid"] == before["metadata"]["uid"]) == (fault is no_such_image)
    assert release.ready()
    release.fill(1_000)
    release.wait_for_commits()


def test_an_upgrade_with_a_wrong_file_leaves_the_old_driver_alone(release: Release) -> None:
    before = release.driver()["metadata"]["uid"]
    config = copy.deepcopy(release.config)
    config["pipelines"][PIPELINE]["event_time"]["field"] = "no_such_field"
    output = release.helm("upgrade", "--atomic", "--timeout", release.deadline, code=1, config=config, seconds=900)
    assert "pre-upgrade hooks failed" in output
    assert release.driver()["metadata"]["uid"] == before
    release.fill(1_000)
    release.wait_for_commits()


def test_spark_asked_for_nothing_that_its_account_may_not(release: Release) -> None:
    """And for all that it may, as far as a driver that ends while its role is there does."""
    name = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{release.namespace}/roles/{DRIVER}"
    (rule,) = release.cluster.api.get(name)["rules"]
    before = release.driver()["metadata"]["uid"]
    release.cluster.api.delete(f"{PLACES['Pod'].format(release.namespace)}/{DRIVER}-0")
    release.until(lambda: release.driver().get("metadata", {}).get("uid", before) != before, "another driver's pod")
    asked = release.cluster.requests_of(DRIVER)
    assert asked == {(verb, "pods") for verb in rule["verbs"]}
    assert release.cluster.refusals_of(DRIVER) == set()
    assert release.cluster.requests_of(f"{DRIVER}-executor") == set()


def test_leases_move_into_kubernetes_and_back_and_their_epoch_goes_on(release: Release) -> None:
    api = release.cluster.api
    url = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/{DRIVER}-{PIPELINE}"
    assert api.find(url) is None
    release.fill(1_000)
    release.wait_for_commits()  # by a driver that has begun
    before = epoch(release)
    release.helm("upgrade", "--atomic", "--timeout", "8m", "--set", "supervisor.lease=kubernetes")
    held = api.get(url)["spec"]
    assert held["holderIdentity"]
    assert held["leaseTransitions"] == epoch(release) == before + 1
    code, output = release.container().run_inside(
        ["headrace", "supervisor", "explain", "/etc/headrace/pipelines.yaml", "--json"], 120
    )
    assert code == 0, output
    assert json.loads(output)["pipelines"][PIPELINE]["lease"]["epoch"] == before + 1
    release.until(lambda: api.get(url)["spec"]["renewTime"] > held["renewTime"], "it is renewed")
    api.delete(url)
    release.until(lambda: api.find(url), "its holder puts it anew")
    assert api.get(url)["spec"]["leaseTransitions"] == before + 1
    release.fill(1_000)
    release.wait_for_commits()
    release.helm("upgrade", "--atomic", "--timeout", "8m")
    assert epoch(release) == before + 2
    assert api.get(url)["spec"]["leaseTransitions"] == before + 1, "nobody holds it any more"
    release.fill(1_000)
    release.wait_for_commits()
    gone_first = {("get", "leases"), ("update", "leases")}  # helm takes the rights away before the pod that has them
    assert release.cluster.refusals_of(DRIVER) <= gone_first


def epoch(release: Release) -> int:
    """The lease under which the newest start was ordered."""
    starts = [commit for commit in oracle.replay(release.lake).commits if commit["kind"] == "start"]
    return int(starts[-1]["lease"])
