"""What platform teams paste is accepted by the kinds that it is of, and makes a release of the chart that works.

A real API server holds manifests against the definitions of Argo CD and Flux, Compose's loader holds its file against
the specification, and the module of Terraform is read by Terraform's parser and held against the provider's schema.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.kubernetes import Cluster, Refused, cluster, until
from tests.support.compose_example import FOLDER as COMPOSE
from tests.support.compose_file import read_compose_file
from tests.support.deploy_examples import (
    FOLDER,
    TERRAFORM,
    ChartValues,
    list_manifests,
    list_values,
    merge_values,
    tool,
)
from tests.support.helm_chart import PLACES, VALUES, pods, render

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(600)]
Json = dict[str, Any]
EXAMPLES = list(list_values())
IDS = [example.name for example in EXAMPLES]
DEFAULT = {path.stem: path for path in VALUES}["default"]
# The plurals of the kinds, as their paths have them.
PLURALS = {
    "Application": "applications",
    "GitRepository": "gitrepositories",
    "HelmRelease": "helmreleases",
    "HelmRepository": "helmrepositories",
    "OCIRepository": "ocirepositories",
}
GOOGLE_ACCOUNT = "headrace@my-project.iam.gserviceaccount.com"
AZURE_ID = "00000000-0000-0000-0000-000000000000"
ROLE = "arn:aws:iam::123456789012:role/headrace"


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server."""
    with cluster(tmp_path_factory.mktemp("kubernetes") / "cluster") as running:
        for name in ("argocd", "lake"):
            running.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield running


@pytest.fixture(scope="module")
def with_kinds(kubernetes: Cluster) -> Cluster:
    """The same, which knows the kinds of Argo CD and Flux."""
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(tool("crds").glob("*.yaml"))]
    assert {definition["spec"]["names"]["kind"] for definition in definitions} == PLURALS.keys()
    for definition in definitions:
        kubernetes.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    until(
        lambda: all(kubernetes.api.find(object_path(manifest, "")) is not None for _, manifest in list_manifests()),
        60,
        "the kinds of Argo CD and Flux",
    )
    return kubernetes


def object_path(manifest: Json, name: str) -> str:
    """Return where the API server has an object, or all of its kind."""
    namespace = manifest["metadata"]["namespace"]
    path = f"/apis/{manifest['apiVersion']}/namespaces/{namespace}/{PLURALS[manifest['kind']]}"
    return f"{path}/{name}" if name else path


def values_file(folder: Path, values: Json) -> Path:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_the_kinds_of_argo_cd_and_flux_take_each_manifest(with_kinds: Cluster) -> None:
    kinds = set()
    for _, manifest in list_manifests():
        accepted = with_kinds.api.apply(object_path(manifest, manifest["metadata"]["name"]), manifest)
        kinds.add(accepted["kind"])
    assert kinds == PLURALS.keys()


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Application", ("spec", "source", "helm", "valueObject"), {}),
        ("Application", ("spec", "syncPolicy", "syncOptions"), "CreateNamespace=true"),
        ("HelmRelease", ("spec", "upgrade", "remediation", "strategy"), "go back"),
        ("HelmRelease", ("spec", "timeout"), "soon"),
        ("HelmRelease", ("spec", "driftDetection", "mode"), "on"),
        ("OCIRepository", ("spec", "url"), "https://registry.example.com/charts/headrace"),
        ("GitRepository", ("spec", "ref", "tags"), "v0.1.0"),
    ],
)
def test_a_mistake_in_a_manifest_would_be_refused(
    with_kinds: Cluster, kind: str, path: tuple[str, ...], value: Any
) -> None:
    manifest = next(manifest for _, manifest in list_manifests() if manifest["kind"] == kind)
    change: Any = value
    for key in reversed(path):
        change = {key: change}
    wrong = merge_values(manifest, change)
    with pytest.raises(Refused):
        with_kinds.api.apply(object_path(wrong, wrong["metadata"]["name"]), wrong, dry_run=True)


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_the_server_accepts_every_object_of_a_release_with_the_values(
    kubernetes: Cluster, tmp_path: Path, example: ChartValues
) -> None:
    path = values_file(tmp_path, example.values)
    objects = render(path) if example.is_whole else render(DEFAULT, "-f", str(path))
    for manifest in sorted(objects, key=lambda found: found["kind"] != "ServiceAccount"):
        place = f"{PLACES[manifest['kind']].format('lake')}/{manifest['metadata']['name']}"
        # A pod without its account is refused.
        is_account = manifest["kind"] == "ServiceAccount"
        accepted = kubernetes.api.apply(place, manifest, dry_run=not is_account)
        assert accepted["metadata"]["name"] == manifest["metadata"]["name"]


def rendered(name: str, tmp_path: Path) -> list[Json]:
    """Return the objects of a release with the values of an example over those of the least."""
    (example,) = [example for example in EXAMPLES if example.name == name]
    return render(DEFAULT, "-f", str(values_file(tmp_path, example.values)))


@pytest.mark.parametrize(
    ("name", "annotation", "value"),
    [
        ("values-eks-irsa.yaml", "eks.amazonaws.com/role-arn", ROLE),
        *(
            (name, "iam.gke.io/gcp-service-account", GOOGLE_ACCOUNT)
            for name in ("values-gke.yaml", "values-gke-gcs.yaml")
        ),
        *(
            (name, "azure.workload.identity/client-id", AZURE_ID)
            for name in ("values-azure.yaml", "values-aks-azure.yaml")
        ),
    ],
)
def test_both_accounts_of_a_release_have_the_identity(tmp_path: Path, name: str, annotation: str, value: str) -> None:
    accounts = [found["metadata"] for found in rendered(name, tmp_path) if found["kind"] == "ServiceAccount"]
    assert [account["name"] for account in accounts] == ["clicks-headrace", "clicks-headrace-executor"]
    assert {account["annotations"][annotation] for account in accounts} == {value}
    for text in map(Path.read_text, (FOLDER / "values-eks-irsa.yaml", FOLDER / "values-aks-azure.yaml")):
        assert all(f"system:serviceaccount:lake:{account['name']}" in text for account in accounts)
    assert all(f"[lake/{account['name']}]" in (FOLDER / "values-gke-gcs.yaml").read_text() for account in accounts)


@pytest.mark.parametrize("name", ["values-gke-gcs.yaml", "values-aks-azure.yaml"])
def test_each_pod_mounts_the_claim_of_the_checkpoints(kubernetes: Cluster, tmp_path: Path, name: str) -> None:
    claim = yaml.safe_load((FOLDER / "checkpoints-claim.yaml").read_text())
    accepted = kubernetes.api.apply(
        f"/api/v1/namespaces/lake/persistentvolumeclaims/{claim['metadata']['name']}", claim, dry_run=True
    )
    assert accepted["spec"]["accessModes"] == ["ReadWriteMany"]
    found = dict(pods(rendered(name, tmp_path)))
    assert len(found) > 4
    for pod in found.values():
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        }
        assert list(claims.values()) == [claim["metadata"]["name"]]
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert claims.keys() == {mounts["/checkpoints"]}
        is_labelled = pod["metadata"]["labels"].get("azure.workload.identity/use") == "true"
        assert is_labelled == (name == "values-aks-azure.yaml")


def test_the_associations_of_pod_identity_name_the_accounts_of_the_release(tmp_path: Path) -> None:
    name = "values-eks-pod-identity.yaml"
    accounts = [found["metadata"]["name"] for found in rendered(name, tmp_path) if found["kind"] == "ServiceAccount"]
    words = (FOLDER / name).read_text().split()
    named = [words[index + 1] for index, word in enumerate(words) if word == "--service-account"]
    assert named == accounts


@pytest.mark.parametrize("name", ["values-gke.yaml", "values-azure.yaml"])
def test_each_pod_can_show_aws_a_token_that_the_cluster_signed(tmp_path: Path, name: str) -> None:
    found = dict(pods(rendered(name, tmp_path)))
    assert len(found) > 4
    for pod in found.values():
        container = pod["spec"]["containers"][0]
        environment = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert environment["AWS_ROLE_ARN"] == ROLE
        folder, _, file = environment["AWS_WEB_IDENTITY_TOKEN_FILE"].rpartition("/")
        (volume,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder]
        (source,) = [item["projected"] for item in pod["spec"]["volumes"] if item["name"] == volume]
        (token,) = [item["serviceAccountToken"] for item in source["sources"]]
        assert (token["audience"], token["path"]) == ("sts.amazonaws.com", file)
        if name == "values-azure.yaml":
            assert pod["metadata"]["labels"]["azure.workload.identity/use"] == "true"


def sync_step(manifest: Json) -> tuple[str, int] | None:
    """Return the phase and wave in which Argo CD applies an object; None where it does not.

    Source: pkg/sync/hook/hook.go and pkg/sync/syncwaves/waves.go of its gitops-engine: hooks of its own count before
    those of helm, and helm's weight is the wave where none is named.
    """
    annotations = manifest["metadata"].get("annotations", {})
    hook = annotations.get("argocd.argoproj.io/hook")
    helm_hook = annotations.get("helm.sh/hook")
    wave = int(annotations.get("argocd.argoproj.io/sync-wave", annotations.get("helm.sh/hook-weight", 0)))
    if hook is None and helm_hook is not None:
        phases = {"pre-install": "PreSync", "pre-upgrade": "PreSync", "post-install": "PostSync"}
        return (phases[helm_hook], wave) if helm_hook in phases else None
    return hook or "Sync", wave


def test_argo_cd_checks_the_file_before_all_else_and_after_what_the_check_needs(tmp_path: Path) -> None:
    (example,) = [example for example in EXAMPLES if example.name == "argocd.yaml"]
    objects = render(values_file(tmp_path, example.values))
    steps = {f"{found['kind']}/{found['metadata']['name']}": sync_step(found) for found in objects}
    assert {step[0] for step in steps.values() if step} == {"Sync"}, "nothing comes before the accounts"
    check = steps.pop("Job/clicks-headrace-check")
    first = {name for name, step in steps.items() if step and step <= check}
    assert first == {
        "ServiceAccount/clicks-headrace",
        "ServiceAccount/clicks-headrace-executor",
        "ConfigMap/clicks-headrace-check",
    }
    assert {name for name, step in steps.items() if step is None} == {
        "Pod/clicks-headrace-test-validate",
        "Pod/clicks-headrace-test-status",
    }


def test_the_loader_of_compose_reads_what_the_tests_play(tmp_path: Path) -> None:
    shutil.copytree(COMPOSE, tmp_path / "compose")
    (tmp_path / "compose" / ".env").write_text("S3_ACCESS_KEY=headrace\nS3_SECRET_KEY=secret\n")
    path = tmp_path / "compose" / "compose.yaml"
    done = subprocess.run([tool("compose"), path], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    project = json.loads(done.stdout)
    file = read_compose_file(path)
    assert project["services"].keys() == file.services.keys()
    for name, service in project["services"].items():
        played = file.services[name]
        assert service["image"] == played.image
        assert tuple(service["command"] or ()) == played.command, name
        assert tuple(service["entrypoint"] or ()) == (played.entrypoint or ()), name
        assert service.get("environment", {}) == played.environment, name
        assert {key: other["condition"] for key, other in service.get("depends_on", {}).items()} == played.depends_on
        targets = [volume["target"] for volume in service.get("volumes", [])]
        assert targets == [volume.target for volume in played.volumes]
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}
        if played.healthcheck:
            test = service["healthcheck"]["test"]
            assert test[1:] == list(played.healthcheck.command[-len(test) + 1 :])


def test_the_loader_of_compose_refuses_what_the_specification_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text((COMPOSE / "compose.yaml").read_text().replace("    healthcheck:", "    healthcheque:"))
    (tmp_path / ".env").write_text("S3_ACCESS_KEY=headrace\nS3_SECRET_KEY=secret\n")
    done = subprocess.run([tool("compose"), path], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "healthcheque" in done.stderr


def terraform_blocks() -> list[Json]:
    """Return the blocks of the module, evaluated with a role."""
    command = [tool("terraform"), TERRAFORM / "main.tf", f"role_arn={ROLE}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    blocks: list[Json] = json.loads(done.stdout)
    return blocks


def find_block(blocks: list[Json], *names: str) -> Json:
    """Return the block of a type and labels."""
    (block,) = [block for block in blocks if (block["type"], *(block["labels"] or ())) == names]
    return block


def snake(name: str) -> str:
    """Return a name of the provider's schema as Terraform writes it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def provider_attributes(kind: str) -> dict[str, bool]:
    """Return the attributes of the provider's resource or block, and whether each is required."""
    described = json.loads(tool("provider-helm.json").read_text())["types"][f"@cdktf/provider-helm.{kind}"]
    return {snake(entry["name"]): not entry.get("optional", False) for entry in described["properties"]}


def test_the_module_of_terraform_says_what_the_provider_knows() -> None:
    blocks = terraform_blocks()
    release = find_block(blocks, "resource", "helm_release", "clicks")["attributes"]
    known = provider_attributes("release.ReleaseConfig")
    assert release.keys() <= known.keys()
    assert {name for name, is_required in known.items() if is_required} <= release.keys()
    provider = find_block(blocks, "provider", "helm")["attributes"]
    assert provider.keys() <= provider_attributes("provider.HelmProviderConfig").keys()
    assert provider["kubernetes"].keys() <= provider_attributes("provider.HelmProviderKubernetes").keys()
    settings = find_block(blocks, "terraform")
    pins = find_block(settings["blocks"], "required_providers")["attributes"]["helm"]
    assert pins == {"source": "hashicorp/helm", "version": "~> 3.1"}


def test_the_values_of_the_module_make_a_release_with_the_role(tmp_path: Path) -> None:
    release = find_block(terraform_blocks(), "resource", "helm_release", "clicks")["attributes"]
    flags = []
    for number, text in enumerate(release["values"]):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        flags += ["-f", str(path)]
    objects = render(Path(flags[1]), *flags[2:], release=release["name"], namespace=release["namespace"])
    accounts = [found["metadata"] for found in objects if found["kind"] == "ServiceAccount"]
    assert {account["annotations"]["eks.amazonaws.com/role-arn"] for account in accounts} == {ROLE}
    files = [found["data"]["pipelines.yaml"] for found in objects if found["kind"] == "ConfigMap"]
    assert set(files) == {(TERRAFORM / "pipelines.yaml").read_text()}
