"""What a pod is given by its node: files of its volumes, environment, and a token, as a kubelet gives them."""

import base64
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.servers.containers import Mount
from tests.servers.kubernetes import Api

Json = dict[str, Any]


class ObjectMissing(Exception):
    """Something that the pod names is not there."""


def volumes(api: Api, pod: Json, folder: Path) -> dict[str, Path]:
    """Lay out the pod's volumes below a folder. Returns where each is. Raises NotYet."""
    owner = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
    paths: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes", []):
        path = folder / volume["name"]
        path.mkdir(parents=True, exist_ok=True)
        match volume:
            case {"emptyDir": _}:
                os.chown(path, owner, owner)
                path.chmod(0o2777)
            case {"configMap": source}:
                _lay(path, _content(api, pod, "configmaps", source["name"]), source)
            case {"secret": source}:
                _lay(path, _content(api, pod, "secrets", source["secretName"]), source)
            case {"projected": projected}:
                for source in projected["sources"]:
                    _project(api, pod, path, source)
            case {"hostPath": source}:
                path = Path(source["path"])
            case {"persistentVolumeClaim": source}:
                path = _claim_path(api, pod, source["claimName"])
            case _:
                raise AssertionError(f"no such volume here: {volume}")
        paths[volume["name"]] = path
    return paths


def mounts(container: Json, paths: Mapping[str, Path]) -> list[Mount]:
    """Where the container sees them."""
    return [
        Mount(paths[m["name"]] / m.get("subPath", ""), m["mountPath"], not m.get("readOnly", False))
        for m in container.get("volumeMounts", [])
    ]


def environment(api: Api, pod: Json, container: Json, address: str) -> dict[str, str]:
    """The container's environment. Raises NotYet."""
    server = urlsplit(api.url)
    variables = {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
    for source in container.get("envFrom", []):
        kind, reference = ("secrets", "secretRef") if "secretRef" in source else ("configmaps", "configMapRef")
        content = _content(api, pod, kind, source[reference]["name"])
        variables |= {source.get("prefix", "") + key: value.decode() for key, value in content.items()}
    for entry in container.get("env", []):
        variables[entry["name"]] = _value(api, pod, entry, address, variables)
    return variables


def expand(arguments: list[str], env: Mapping[str, str]) -> list[str]:
    """Replace $(NAME) by what the environment says."""
    return [re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda m: env.get(m[1], m[0]), argument) for argument in arguments]


def _value(api: Api, pod: Json, entry: Json, address: str, env: Mapping[str, str]) -> str:
    match entry.get("valueFrom"):
        case None:
            return expand([entry.get("value", "")], env)[0]
        case {"fieldRef": {"fieldPath": path}}:
            if path == "status.podIP":
                return address
            member: Any = pod
            for part in path.split("."):
                member = member[part]
            return str(member)
        case {"secretKeyRef": ref}:
            return _content(api, pod, "secrets", ref["name"])[ref["key"]].decode()
        case {"configMapKeyRef": ref}:
            return _content(api, pod, "configmaps", ref["name"])[ref["key"]].decode()
    raise AssertionError(f"no such source of a variable here: {entry}")


def _content(api: Api, pod: Json, kind: str, name: str) -> dict[str, bytes]:
    document = api.find(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind}/{name}")
    if document is None:
        raise ObjectMissing(f"{kind} {name!r} not found")
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in document.get("data", {}).items()}
    return {key: value.encode() for key, value in document.get("data", {}).items()}


def _lay(folder: Path, content: Mapping[str, bytes], source: Json) -> None:
    items = {item["key"]: item["path"] for item in source.get("items", [])} or {key: key for key in content}
    for key, path in items.items():
        (folder / path).write_bytes(content[key])
        (folder / path).chmod(0o644)


def _project(api: Api, pod: Json, folder: Path, source: Json) -> None:
    match source:
        case {"serviceAccountToken": projection}:
            token = api.token_of(pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"])
            (folder / projection["path"]).write_text(token)
        case {"configMap": projection}:
            _lay(folder, _content(api, pod, "configmaps", projection["name"]), projection)
        case {"downwardAPI": projection}:
            for item in projection["items"]:
                (folder / item["path"]).write_text(pod["metadata"][item["fieldRef"]["fieldPath"].split(".")[1]])
        case _:
            raise AssertionError(f"no such projection here: {source}")


def _claim_path(api: Api, pod: Json, claim: str) -> Path:
    claim_object = api.find(f"/api/v1/namespaces/{pod['metadata']['namespace']}/persistentvolumeclaims/{claim}")
    if claim_object is None or not claim_object["spec"].get("volumeName"):
        raise ObjectMissing(f"persistentvolumeclaim {claim!r} is not bound")
    return Path(api.get(f"/api/v1/persistentvolumes/{claim_object['spec']['volumeName']}")["spec"]["hostPath"]["path"])


def forget(folder: Path) -> None:
    """Remove what was laid out."""
    shutil.rmtree(folder, ignore_errors=True)
