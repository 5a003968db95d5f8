"""The chart on a real API server: what it renders is accepted, may no more than it needs, and leaves nothing behind."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.lease import kubernetes_api as cluster_api
from headrace.writer.lease.kubernetes_lease import KubernetesLeases, LeaseContent, lease_name
from tests.servers.kubernetes import KUBERNETES, Api, Cluster, Refused, cluster, until
from tests.servers.leases import account
from tests.support.doc_examples import documented_configs
from tests.support.helm_chart import CHART, CRDS, MONITORING, PLACES, ROOT, VALUES, helm, pods, render, wrong

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(600)]
Json = dict[str, Any]
CI = {path.stem: path for path in VALUES}
BY_NAME = {"argvalues": VALUES, "ids": [path.stem for path in VALUES]}


VIEWS = {"topics": ["views"], "table": {"location": "s3://lake/views"}, "event_time": {"field": "at"}}
# A file that the chart takes; the mistakes below are made in it.
FILE = {
    "kafka": {"bootstrap_servers": "kafka:9092"}, "registry": {"url": "http://registry:8081"},
    "checkpoints": "s3://lake/checkpoints", "pipelines": {"views": VIEWS},
}  # fmt: skip


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("kubernetes") / "cluster") as kubernetes_cluster:
        for path in CRDS:
            body = yaml.safe_load(path.read_text())
            url = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            kubernetes_cluster.api.create(url, body)
        until(
            lambda: all(kubernetes_cluster.api.find(PLACES[kind].format("default")) is not None for kind in MONITORING),
            60,
            "the kinds of the Prometheus operator",
        )  # fmt: skip
        yield kubernetes_cluster


@pytest.mark.parametrize("values", **BY_NAME)
def test_the_chart_passes_its_lint(values: Path) -> None:
    code, output = helm("lint", "--strict", CHART, "-f", values)
    assert code == 0, output


@pytest.mark.parametrize(("values", "deletes"), [("default", False), ("many", True)])
def test_vacuum_deletes_only_where_the_values_say_so(values: str, deletes: bool) -> None:
    pods_of_jobs = dict(pods([resource for resource in render(CI[values]) if resource["kind"] == "CronJob"]))
    vacuum_pods = [pod for name, pod in pods_of_jobs.items() if "-vacuum-" in name]
    assert vacuum_pods
    assert all(("--yes" in str(pod)) == deletes for pod in vacuum_pods)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["executors.cores=two"], "at '/executors/cores': got string, want integer"),
        (["executors.instances=0"], "at '/executors/instances': minimum: got 0, want 1"),
        (["ports.driver=80"], "at '/ports/driver': minimum: got 80, want 1,024"),
        (["image.pullPolicy=Sometimes"], "at '/image/pullPolicy': value must be one of 'Always', "),
        (["driver.memori=1g"], "at '/driver': additional properties 'memori' not allowed"),
        (["driver.memory=1Gi"], "at '/driver/memory': '1Gi' does not match pattern"),
        (["jobs.audit.schedule=often"], "at '/jobs/audit/schedule': 'often' does not match pattern"),
        (["autoscaler.interval=soon"], "at '/autoscaler/interval': 'soon' does not match pattern"),
        (["podSecurityContext.runAsUser=root"], "at '/podSecurityContext/runAsUser': got string, want"),
        (["podSecurityContext.runAsUsr=1"], "at '/podSecurityContext': additional properties 'runAsUsr' not allowed"),
        (["securityContext.privilegd=true"], "at '/securityContext': additional properties 'privilegd' not allowed"),
        (["commonLabels.app\\.kubernetes\\.io/name=x"], "invalid propertyName 'app.kubernetes.io/name'"),
        (["extraContainers[0].name=logs"], "at '/extraContainers/0': missing property 'image'"),
        (["env[0].name=A"], "additional properties 'env' not allowed"),
        (["image.pullSecrets[0].name=a"], "at '/image': additional properties 'pullSecrets' not allowed"),
        (["existingConfigMap=ours"], "existingConfigMap: it holds the file of the pipelines, and config gives"),
        (["config=", "existingConfigMap=ours"], "pipelines: the chart does not see the file of existingConfigMap."),
        (["pipelines[0]=clicks"], "pipelines: config names them itself."),
        (["page.ingress.enabled=true"], "page.ingress.host: the ingress needs a host"),
        (["page.httpRoute.enabled=true"], "page.httpRoute.parentRefs: the route belongs to no gateway."),
        (["page.ingress.hst=a.b"], "at '/page/ingress': additional properties 'hst' not allowed"),
        (["podLabels.app\\.kubernetes\\.io/name=x"], "invalid propertyName 'app.kubernetes.io/name'"),
        (["extraInitContainers[0].name=token", "extraInitContainers[0].image=x"], "at '/extraInitContainers/0/name'"),
        (["image.digest=sha256:abc"], "at '/image/digest': 'sha256:abc' does not match pattern"),
        (["supervisor.lease=file"], "at '/supervisor/lease': value must be one of 'store', 'kubernetes'"),
        (["config="], "config: the file of the pipelines is missing. Give it as it is: --set-file"),
        (["config=clicks"], "config: this is no YAML mapping"),
        (["config=kafka: {}"], "config: it names no pipelines."),
        (["config=pipelines: {a: {}}\nhttp: {port: 1}"], "config: http.host, port and enabled are the chart's here"),
        (["config=pipelines: {a: {}}\nsupervisor: {lease: store}"], "config: supervisor.lease and lease_prefix are"),
        (["config=checkpoints: /var/lib/c\npipelines: {a: {}}"], "config: checkpoints is /var/lib/c, and no volume is"),
        (
            ["config=checkpoints: s3://b/c\npipelines: {a: {table: {location: /lake/a}}}"],
            "config: pipelines.a.table.location is /lake/a, and no volume is there: it would go with the pod.",
        ),
        (["config=pipelines: {a: {}}\nspark: {master: 'local[4]'}"], 'config: spark.master is "local[4]"'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_a_sentence_that_names_it(flags: list[str], said: str) -> None:
    sets = [word for flag in flags for word in ("--set-json" if "\n" in flag or "{" in flag else "--set", _json(flag))]
    code, answer = helm("template", "clicks", CHART, "-f", CI["default"], *sets)
    assert code != 0
    assert said in answer


def template_file(path: Path, document: Json) -> tuple[int, str]:
    """Render the chart with a file of the pipelines."""
    (path / "pipelines.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return helm("template", "clicks", CHART, "-f", CI["bare"], "--set-file", f"config={path / 'pipelines.yaml'}")


def with_views(**settings: Any) -> Json:
    return {**FILE, "pipelines": {"views": {**VIEWS, **settings}}}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({**FILE, "kafak": {}}, "file: unknown key 'kafak'; known here: autoscaler, "),
        ({**FILE, "kafka": {"bootstrap_server": "kafka:9092"}}, "kafka: unknown key 'bootstrap_server'"),
        ({**FILE, "kafka": "kafka:9092"}, "kafka: it is a single value; write a mapping"),
        ({**FILE, "pipelines": {"views": {**VIEWS, "topcs": ["x"]}}}, "pipelines.views: unknown key 'topcs'"),
        ({key: FILE[key] for key in FILE if key != "registry"}, "registry: pipelines.views reads records"),
        ({**FILE, "registry": {"user": "etl"}}, "registry: pipelines.views reads records that name a schema; give "),
        ({**with_views(formats=["json", "protobuf"]), "registry": {}}, "registry: pipelines.views reads records that"),
        ({**FILE, "registry": None, "defaults": {"formats": "avro"}}, "registry: pipelines.views reads records"),
        ({**FILE, "pipelines": {"views": {"topics": ["views"]}}}, "pipelines.views.table: it is missing"),
        ({**FILE, "defaults": {"comit": {}}}, "defaults: unknown key 'comit'"),
        (with_views(commit={"max_dealy": "1 min"}), "pipelines.views.commit: unknown key 'max_dealy'; known here: "),
        (with_views(on_data_loss="ignore"), 'pipelines.views.on_data_loss: "ignore" is none of record, stop'),
        (with_views(specs={"com.Click": {"whre": "x"}}), "pipelines.views.specs.com.Click: unknown key 'whre'"),
        (with_views(hooks=[{"type": "webhook", "name": "a", "url": "http://a", "tries": 1}]), "hooks.0: unknown key"),
        (with_views(hooks={"type": "webhook"}), "pipelines.views.hooks: it is a mapping; write a list"),
        (with_views(topics={"pattern": "a.*", "mx": 3}), "pipelines.views.topics: unknown key 'mx'"),
        ({**FILE, "catalog": {"type": "sql", "uri": "sqlite:////lake/catalog.db"}}, "catalog.uri is a file of SQLite"),
        ({**FILE, "catalog": {"type": "sql", "uri": "SQLite+pysqlite:////c.db"}}, "catalog.uri is a file of SQLite"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_of_the_pipelines_is_refused_at_install(
    tmp_path: Path, document: Json, said: str
) -> None:
    code, answer = template_file(tmp_path, document)
    assert code != 0
    assert said in answer


def test_each_mistake_in_the_file_has_a_line(tmp_path: Path) -> None:
    document = {**with_views(comit={}, rol={}, seal={"late": "tabel"}), "extra": 1}
    _, answer = template_file(tmp_path, document)
    lines = [line for line in answer.splitlines() if line.startswith("  ")]
    assert [line.strip().partition(";")[0] for line in lines] == [
        "file: unknown key 'extra'", "pipelines.views: unknown key 'comit'", "pipelines.views: unknown key 'rol'",
        'pipelines.views.seal.late: "tabel" is none of reopen, late_table, dead_letter',
    ]  # fmt: skip


def test_every_configuration_of_the_documentation_is_taken(tmp_path: Path) -> None:
    """What headrace takes, the chart takes; places and sections that a cluster decides apart."""
    documents = [
        *documented_configs(),
        with_views(topics={"pattern": "a.*"}),
        with_views(retention="${env:KEEP}"),
        {**with_views(formats="json"), "registry": {}},
        {**with_views(formats=["json", "raw"]), "registry": None},
        {**with_views(registry={"url": "http://registry:8081"}), "registry": None},
        {**with_views(), "registry": {}, "defaults": {"formats": "raw"}},
        {**with_views(formats="${env:FORMATS}"), "registry": {}},
    ]
    documents.append({**FILE, "defaults": {"event_time": {"field": "at"}}, "pipelines": {"views": {"topics": ["v"]}}})
    assert len(documents) > 10
    for document in documents:
        _, answer = template_file(tmp_path, document)
        assert "the file of the pipelines cannot be used" not in answer, document


def _json(flag: str) -> str:
    key, _, value = flag.partition("=")
    return f"{key}={yaml.safe_dump(value, default_style=chr(34)).strip()}" if "\n" in flag or "{" in flag else flag


def test_a_namespace_may_choose_user_and_groups_and_the_others_stay() -> None:
    chosen = dict(pods(render(CI["platform"])))
    assert len(chosen) > 5
    for pod in chosen.values():
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, "supplementalGroups": [2000],
            "fsGroupChangePolicy": "OnRootMismatch",
        }  # fmt: skip
    for pod in dict(pods(render(CI["default"]))).values():
        assert {pod["spec"]["securityContext"][of] for of in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}
        assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in pod["spec"]["containers"])


def test_every_object_and_pod_has_the_common_labels_and_a_more_special_one_counts_before_them() -> None:
    objects = render(CI["platform"])
    teams = {
        f"{resource['kind']}/{resource['metadata']['name']}": resource["metadata"]["labels"].get("team")
        for resource in objects
    }
    assert {name for name, team in teams.items() if team != "data"} == {"PodMonitor/clicks-headrace"}
    assert teams["PodMonitor/clicks-headrace"] == "observability"
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects)}
    assert all(label["cost-center"] == "42" for label in labels.values())
    assert labels["StatefulSet/clicks-headrace"]["team"] == "streaming"
    (driver,) = [resource for resource in objects if resource["kind"] == "StatefulSet"]
    assert "team" not in driver["spec"]["selector"]["matchLabels"], "it cannot be changed later"


def test_the_pipelines_file_may_be_another_config_map_for_every_pod() -> None:
    objects = render(CI["platform"])
    own = [resource for resource in objects if resource["kind"] == "ConfigMap"]
    assert [sorted(resource["data"]) for resource in own] == [["executor.yaml", "overlay.yaml"]] * len(own)
    jobs = []
    for name, pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            for mount in container.get("volumeMounts", []):
                assert mount["name"] in volumes, f"{name}: {mount}"
                if mount["mountPath"] == "/etc/headrace":
                    (first, _) = volumes[mount["name"]]["projected"]["sources"]
                    files = [{"key": "pipelines.yaml", "path": "pipelines.yaml"}]
                    assert first["configMap"] == {"name": "team-pipelines", "items": files}
                    jobs.append(name)
    assert len(set(jobs)) >= 8, "driver, check, tests, audit, and two jobs of each pipeline"
    (role,) = [resource for resource in objects if resource["kind"] == "Role"]
    assert "clicks-headrace-clicks" in role["rules"][1]["resourceNames"]


def test_every_pod_has_the_labels_of_pods_and_no_other_object_has_them() -> None:
    objects = render(CI["platform"])
    pods_by_name = dict(pods(objects))
    assert len(pods_by_name) > 5
    assert {pod["metadata"]["labels"]["sidecar.example.com/inject"] for pod in pods_by_name.values()} == {"false"}
    assert not any(
        "sidecar.example.com/inject" in resource["metadata"]["labels"]
        for resource in objects
        if resource["kind"] != "Pod"
    )


@pytest.mark.parametrize(("values", "own"), [("platform", ["token", "autoscaler"]), ("local", [])])
def test_further_init_containers_run_before_those_of_the_chart(values: str, own: list[str]) -> None:
    further = json.dumps(yaml.safe_load(CI["platform"].read_text())["extraInitContainers"])
    objects = render(CI[values], "--set-json", f"extraInitContainers={further}")
    (driver,) = [resource for resource in objects if resource["kind"] == "StatefulSet"]
    names = [initcontainer["name"] for initcontainer in driver["spec"]["template"]["spec"]["initContainers"]]
    assert names == ["keys", *own]


def test_no_way_leads_to_the_page_from_outside_unless_one_is_asked_for() -> None:
    for values, path in CI.items():
        kinds = [resource["kind"] for resource in render(path)]
        assert "HTTPRoute" not in kinds
        assert ("Ingress" in kinds) == (values == "monitored")
        assert kinds.count("Service") == (2 if values == "monitored" else 1)


def test_an_ingress_leads_to_the_page_of_the_driver() -> None:
    objects = {f"{resource['kind']}/{resource['metadata']['name']}": resource for resource in render(CI["monitored"])}
    ingress = objects["Ingress/clicks-headrace-page"]["spec"]
    assert ingress["ingressClassName"] == "nginx"
    assert ingress["tls"] == [{"secretName": "headrace-tls", "hosts": ["headrace.example.com"]}]
    (rule,) = ingress["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("headrace.example.com", "/")
    assert path["backend"]["service"] == {"name": "clicks-headrace-page", "port": {"name": "driver"}}
    service = objects["Service/clicks-headrace-page"]["spec"]
    driver = objects["StatefulSet/clicks-headrace"]["spec"]["template"]
    assert service["selector"].items() <= driver["metadata"]["labels"].items()
    assert "clusterIP" not in service
    ports = {port["name"]: port["containerPort"] for port in driver["spec"]["containers"][0]["ports"]}
    assert [(port["targetPort"], port["port"]) for port in service["ports"]] == [("driver", ports["driver"])]


def test_a_route_of_a_gateway_lets_requests_look_and_no_more() -> None:
    flags = [
        "page.httpRoute.enabled=true",
        "page.httpRoute.parentRefs[0].name=public",
        "page.httpRoute.hostnames[0]=h.io",
    ]
    objects = render(CI["default"], *(word for flag in flags for word in ("--set", flag)))
    (route,) = [resource for resource in objects if resource["kind"] == "HTTPRoute"]
    assert route["spec"]["parentRefs"] == [{"name": "public"}]
    assert route["spec"]["hostnames"] == ["h.io"]
    (rule,) = route["spec"]["rules"]
    assert [match["method"] for match in rule["matches"]] == ["GET"]
    assert rule["backendRefs"] == [{"name": "clicks-headrace-page", "port": 9643}]


def test_further_containers_and_secrets_of_images_reach_the_pods() -> None:
    objects = render(CI["platform"])
    pods_by_name = dict(pods(objects))
    assert [container["name"] for container in pods_by_name["StatefulSet/clicks-headrace"]["spec"]["containers"]] == [
        "driver",
        "logs",
    ]
    for name, pod in pods_by_name.items():
        executor = name.startswith("ConfigMap/")  # Spark sets theirs
        assert executor or pod["spec"]["imagePullSecrets"] == [{"name": "registry-credentials"}], name
        assert {"name": "TZ", "value": "UTC"} in pod["spec"]["containers"][0]["env"], name
    overlays = [
        yaml.safe_load(resource["data"]["overlay.yaml"]) for resource in objects if resource["kind"] == "ConfigMap"
    ]
    assert {overlay["spark"]["conf"]["spark.kubernetes.container.image.pullSecrets"] for overlay in overlays} == {
        "registry-credentials"
    }


def test_the_file_of_the_pipelines_arrives_verbatim(tmp_path: Path) -> None:
    text = (
        "# a comment\nkafka: {bootstrap_servers: 'kafka:9092'}  # and another\nregistry: {url: 'http://registry'}\n\n"
        "checkpoints: s3://lake/checkpoints\npipelines:\n  a_b: &x\n    topics: ['${env:TOPIC}', "
        '"{{ .Release.Name }}"]\n    table: {location: s3://lake/Köln}\n    event_time: {field: at}\n'
    )
    (tmp_path / "pipelines.yaml").write_text(text)
    flags = ["--set-file", f"config={tmp_path / 'pipelines.yaml'}"]
    maps = [o for o in render(CI["bare"], *flags) if o["kind"] == "ConfigMap"]
    assert [found["data"]["pipelines.yaml"] for found in maps] == [text]


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        ({"pipelines": {"views": VIEWS}}, False),
        ({"defaults": {"event_time": {"field": "at"}}}, False),
        ({"kafka": {"bootstrap_servers": "other:9092"}}, True),
    ],
    ids=["a pipeline", "defaults", "kafka"],
)
def test_pipelines_and_defaults_come_without_another_pod_and_what_needs_a_restart_rolls_it(
    change: Json, rolls: bool, tmp_path: Path
) -> None:
    config = yaml.safe_load(yaml.safe_load(CI["default"].read_text())["config"])
    changed = {**config, **{key: {**config.get(key, {}), **values} for key, values in change.items()}}
    templates = []
    for number, one in enumerate((config, changed)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(one))
        objects = render(CI["default"], "--set-file", f"config={path}")
        templates.append(
            next(resource["spec"]["template"] for resource in objects if resource["kind"] == "StatefulSet")
        )
        assert yaml.safe_dump(one) in [
            resource["data"].get("pipelines.yaml") for resource in objects if "data" in resource
        ]
    assert (templates[0] != templates[1]) == rolls


@pytest.mark.parametrize(
    ("own", "image"),
    [
        ({}, "registry/headrace@sha256:" + "a" * 64),
        ({"repository": "registry/slim"}, "registry/slim:v1"),
        ({"repository": "registry/slim", "tag": "v2"}, "registry/slim:v2"),
        ({"repository": "registry/slim", "digest": "sha256:" + "b" * 64}, "registry/slim@sha256:" + "b" * 64),
    ],
)
def test_the_autoscaler_has_the_image_of_the_driver_or_its_own(own: Json, image: str, tmp_path: Path) -> None:
    values = yaml.safe_load(CI["default"].read_text())
    values["image"] = {"repository": "registry/headrace", "tag": "v1", "digest": "sha256:" + "a" * 64}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({**values, "autoscaler": {"image": own}}))
    (driver,) = [resource for resource in render(tmp_path / "values.yaml") if resource["kind"] == "StatefulSet"]
    images = {
        initcontainer["name"]: initcontainer["image"]
        for initcontainer in driver["spec"]["template"]["spec"]["initContainers"]
    }
    assert images == {"token": "registry/headrace@sha256:" + "a" * 64, "autoscaler": image}


@pytest.mark.parametrize("values", **BY_NAME)
def test_the_server_accepts_every_object_and_knows_all_its_fields(kubernetes: Cluster, values: Path) -> None:
    name = kubernetes.namespace(f"accepts-{values.stem}")
    accounts = [{"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": n}} for n in ("writer-executor",)]
    for resource in [*accounts, *sorted(render(values, namespace=name), key=lambda o: o["kind"] != "ServiceAccount")]:
        url = f"{PLACES[resource['kind']].format(name)}/{resource['metadata']['name']}"
        really = resource["kind"] == "ServiceAccount"  # a pod without its account is refused
        assert kubernetes.api.apply(url, resource, dry_run=not really)["kind"] == resource["kind"]


def test_a_field_that_the_server_does_not_know_would_be_refused(kubernetes: Cluster) -> None:
    name = kubernetes.namespace("unknown")
    driver = next(o for o in render(CI["default"], namespace=name) if o["kind"] == "StatefulSet")
    driver["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(Refused, match="readynessProbe"):
        kubernetes.api.apply(f"{PLACES['StatefulSet'].format(name)}/x", driver, dry_run=True)


def everything() -> dict[str, Json]:
    """Every object of every example, and the pod of its executors; kinds of the Prometheus operator have their own."""
    objects_by_name = {}
    for values in VALUES:
        objects = render(values)
        objects_by_name |= {
            f"{values.stem}: {o['kind']}/{o['metadata']['name']}": o for o in objects if o["kind"] not in MONITORING
        }
        objects_by_name |= {
            f"{values.stem}: {n}: pod": {"kind": "Pod", "apiVersion": "v1", **pod} for n, pod in pods(objects)
        }
    return objects_by_name


def test_every_version_that_the_chart_takes_knows_all_fields_of_every_object() -> None:
    """The versions but one are not here to be asked; their schemas are."""
    oldest = int(re.fullmatch(r">=1\.(\d+)\.0-0", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])[1])
    objects = everything()
    newest = int(wrong({}, [])[0][-1].partition(".")[2])
    served = [f"1.{minor}" for minor in range(oldest, newest + 1)]
    assert KUBERNETES.removeprefix("v").rpartition(".")[0] in served
    known, problems_by_version = wrong(objects, served)
    assert set(served) <= set(known)
    assert problems_by_version == {version: {} for version in served}
    assert f"1.{oldest} to 1.{newest}" in (ROOT / "docs" / "DEPLOY.md").read_text(), "the versions are told"
    for version in (served[0], served[-1]):
        assert helm("template", "clicks", CHART, "-f", CI["default"], "--kube-version", version)[0] == 0


def test_a_version_without_native_sidecars_is_refused() -> None:
    """By their name: so a field that a version does not know would be seen."""
    _, problems_by_version = wrong(everything(), ["1.27"])
    assert "('restartPolicy' was unexpected)" in problems_by_version["1.27"]["default: StatefulSet/clicks-headrace"]
    assert "local: StatefulSet/clicks-headrace" not in problems_by_version["1.27"], (
        "without executors there is no autoscaler"
    )
    code, output = helm("template", "clicks", CHART, "-f", CI["default"], "--kube-version", "1.28")
    assert code != 0
    assert "which is incompatible with Kubernetes v1.28" in output


@pytest.mark.parametrize("values", **BY_NAME)
def test_every_pod_is_one_that_a_restricted_namespace_takes(kubernetes: Cluster, values: Path) -> None:
    name = kubernetes.namespace(f"restricted-{values.stem}", {"pod-security.kubernetes.io/enforce": "restricted"})
    pods_by_name = dict(pods(render(values, namespace=name)))
    assert pods_by_name
    for template in pods_by_name.values():
        spec = {**template["spec"], "serviceAccountName": "default", "priorityClassName": ""}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
        kubernetes.api.create(f"{PLACES['Pod'].format(name)}?dryRun=All", pod)
    spec["containers"][0]["securityContext"] = {}
    with pytest.raises(Refused, match="PodSecurity"):
        kubernetes.api.create(f"{PLACES['Pod'].format(name)}?dryRun=All", pod)


def kinds(api: Api, namespace: str) -> dict[str, set[str]]:
    """What there is of a release, by kind."""
    selector = "labelSelector=app.kubernetes.io%2Finstance%3Dclicks"
    items_by_kind = {kind: api.items(f"{location.format(namespace)}?{selector}") for kind, location in PLACES.items()}
    return {kind: {item["metadata"]["name"] for item in items} for kind, items in items_by_kind.items() if items}


def test_a_release_is_installed_upgraded_rolled_back_and_removed(kubernetes: Cluster) -> None:
    api, name = kubernetes.api, kubernetes.namespace("life")
    flags = ["-n", name, "--set", "upgradeCheck.enabled=false"]
    output = kubernetes.helm("install", "clicks", CHART, "-f", CI["monitored"], *flags)
    assert "headrace carries clicks" in output
    assert set(kinds(api, name)) >= set(PLACES) - {"Job", "Pod"}
    driver = f"{PLACES['StatefulSet'].format(name)}/clicks-headrace"
    until(lambda: api.find(f"{PLACES['Pod'].format(name)}/clicks-headrace-0"), 60, "the driver's pod")

    def seen() -> tuple[str, str]:
        spec = api.get(driver)["spec"]["template"]
        return spec["spec"]["containers"][0]["image"], spec["metadata"]["annotations"]["headrace/files"]

    image, files = seen()
    kubernetes.helm(
        "upgrade", "clicks", CHART, "-f", CI["monitored"], *flags, "--set", "image.tag=v2,executors.cores=4"
    )
    assert seen()[0] == "registry.example.com/headrace:v2"
    assert seen()[1] != files, "another file of the place is another pod"
    document = yaml.safe_load(api.get(f"{PLACES['ConfigMap'].format(name)}/clicks-headrace")["data"]["overlay.yaml"])
    assert document["spark"]["conf"]["spark.executor.cores"] == "4"
    pod = f"{PLACES['Pod'].format(name)}/clicks-headrace-0"
    until(
        lambda: (driver_pod := api.find(pod)) and driver_pod["spec"]["containers"][0]["image"].endswith(":v2"), 60,
        "a pod of the new version, though the old one was never ready",
    )  # fmt: skip
    kubernetes.helm("rollback", "clicks", "1", "-n", name)
    assert seen() == (image, files)
    until(
        lambda: (driver_pod := api.find(pod)) and driver_pod["spec"]["containers"][0]["image"] == image, 60,
        "a pod of the old version, though the new one was never ready",
    )  # fmt: skip
    kubernetes.helm("uninstall", "clicks", "-n", name)
    until(lambda: not kinds(api, name), 60, "nothing is left")


def test_each_account_may_do_what_it_needs_and_nothing_else(kubernetes: Cluster) -> None:
    name = kubernetes.namespace("rights")
    kubernetes.helm("install", "clicks", CHART, "-f", CI["default"], "-n", name)
    askable = [
        (group["name"], resource["name"], verb)
        for group in [{"name": ""}, *kubernetes.api.get("/apis")["groups"]]
        for resource in _resources(kubernetes.api, group)
        for verb in {*resource["verbs"], "escalate", "impersonate", "bind"}
    ]
    assert len(askable) > 500
    needs = {("", "pods", verb) for verb in ("create", "get", "list", "watch", "delete", "deletecollection")}
    anybody = _allowed(kubernetes.api.of(name, "default"), name, askable)
    driver = _allowed(kubernetes.api.of(name, "clicks-headrace"), name, askable)
    assert driver - anybody == needs
    assert _allowed(kubernetes.api.of(name, "clicks-headrace-executor"), name, askable) == anybody
    elsewhere = kubernetes.api.of(name, "clicks-headrace")
    assert not any(elsewhere.may(verb, resource, "kube-system", group) for group, resource, verb in needs)
    assert not any(resource in ("secrets", "pods", "configmaps") for _, resource, _ in anybody)


def test_a_driver_may_hold_the_leases_of_its_pipelines_and_no_other(kubernetes: Cluster, tmp_path: Path) -> None:
    name = kubernetes.namespace("leases")
    kubernetes.helm("install", "clicks", CHART, "-f", CI["many"], "-n", name)
    own = kubernetes.api.of(name, "clicks-headrace")
    api = cluster_api.Api(own.url, account(tmp_path, own.token, name, own.ca.read_bytes()))
    files = kubernetes.api.get(f"{PLACES['ConfigMap'].format(name)}/clicks-headrace")["data"]
    document = yaml.safe_load(files["overlay.yaml"])["supervisor"]
    assert document["lease"] == "kubernetes"
    for pipeline in yaml.safe_load(files["pipelines.yaml"])["pipelines"]:
        lease = lease_name(document["lease_prefix"], pipeline)
        one = KubernetesLeases(api, LeaseContent(lease, pipeline, timedelta(seconds=20)))
        until(lambda lease=lease: _may(own, name, lease), 30, "the rights of the account")
        assert one.take(3, "clicks-headrace-0/1")
        assert one.renew(3, "clicks-headrace-0/1")
        one.release(3, "clicks-headrace-0/1")
        seen = one.look()
        assert seen is not None
        assert (seen.epoch, seen.released) == (3, True)
        assert _may(own, name, lease) == {"get", "create", "update"}
    assert _may(own, name, "somebody-elses") == _may(own, name, "") == set()
    for verb, ask in FOREIGN.items():
        with pytest.raises(cluster_api.ApiFailed, match=f"403: .*Give the account's Role the verb `{verb}`"):
            ask(api)


FOREIGN: dict[str, Callable[[cluster_api.Api], object]] = {
    "get": lambda api: api.lease("get", "somebody-elses"),
    "create": lambda api: api.lease("create", "somebody-elses", {"metadata": {"name": "somebody-elses"}}),
}


def _may(api: Api, namespace: str, lease: str) -> set[str]:
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    return {verb for verb in verbs if api.may(verb, "leases", namespace, "coordination.k8s.io", lease)}


def test_leases_alone_need_a_token_and_no_right_over_pods() -> None:
    for lease, mounted in (("store", False), ("kubernetes", True)):
        objects = render(CI["local"], "--set", f"supervisor.lease={lease}")
        driver = next(o for o in objects if o["kind"] == "StatefulSet")
        assert driver["spec"]["template"]["spec"]["automountServiceAccountToken"] is mounted
        roles = [o for o in objects if o["kind"] == "Role"]
        assert [[rule["resources"] for rule in role["rules"]] for role in roles] == ([[["leases"]]] if mounted else [])


def _resources(api: Api, group: dict[str, object]) -> list[dict[str, object]]:
    version = group.get("preferredVersion")
    path = f"/apis/{version['groupVersion']}" if isinstance(version, dict) else "/api/v1"
    resources: list[dict[str, object]] = api.get(path)["resources"]
    return resources


def _allowed(api: Api, namespace: str, everything: list[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    return {(g, r, v) for g, r, v in everything if api.may(v, r, namespace, g)}
