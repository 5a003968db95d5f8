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


class NotYet(Exception):
    """Something that the pod names is not there."""


def volumes(api: Api, pod: Json, folder: Path) -> dict[str, Path]:
    """Lay out the pod's volumes below a folder. Returns where each is. Raises NotYet."""
    owner = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
    found: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes", []):
        place = folder / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        match volume:
            case {"emptyDir": _}:
                os.chown(place, owner, owner)
                place.chmod(0o2777)
            case {"configMap": source}:
                _lay(place, _content(api, pod, "configmaps", source["name"]), source)
            case {"secret": source}:
                _lay(place, _content(api, pod, "secrets", source["secretName"]), source)
            case {"projected": projected}:
                for source in projected["sources"]:
                    _project(api, pod, place, source)
            case {"hostPath": source}:
                place = Path(source["path"])
            case {"persistentVolumeClaim": source}:
                place = _claim_path(api, pod, source["claimName"])
            case _:
                raise AssertionError(f"no such volume here: {volume}")
        found[volume["name"]] = place
    return found


def mounts(container: Json, places: Mapping[str, Path]) -> list[Mount]:
    """Where the container sees them."""
    return [
        Mount(places[m["name"]] / m.get("subPath", ""), m["mountPath"], not m.get("readOnly", False))
        for m in container.get("volumeMounts", [])
    ]


def environment(api: Api, pod: Json, container: Json, address: str) -> dict[str, str]:
    """The container's environment. Raises NotYet."""
    server = urlsplit(api.url)
    found = {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
    for source in container.get("envFrom", []):
        kind, which = ("secrets", "secretRef") if "secretRef" in source else ("configmaps", "configMapRef")
        content = _content(api, pod, kind, source[which]["name"])
        found |= {source.get("prefix", "") + key: value.decode() for key, value in content.items()}
    for entry in container.get("env", []):
        found[entry["name"]] = _value(api, pod, entry, address, found)
    return found


def expand(words: list[str], env: Mapping[str, str]) -> list[str]:
    """Replace $(NAME) by what the environment says."""
    return [re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda m: env.get(m[1], m[0]), word) for word in words]


def _value(api: Api, pod: Json, entry: Json, address: str, env: Mapping[str, str]) -> str:
    match entry.get("valueFrom"):
        case None:
            return expand([entry.get("value", "")], env)[0]
        case {"fieldRef": {"fieldPath": path}}:
            if path == "status.podIP":
                return address
            here: Any = pod
            for part in path.split("."):
                here = here[part]
            return str(here)
        case {"secretKeyRef": ref}:
            return _content(api, pod, "secrets", ref["name"])[ref["key"]].decode()
        case {"configMapKeyRef": ref}:
            return _content(api, pod, "configmaps", ref["name"])[ref["key"]].decode()
    raise AssertionError(f"no such source of a variable here: {entry}")


def _content(api: Api, pod: Json, kind: str, name: str) -> dict[str, bytes]:
    found = api.find(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind}/{name}")
    if found is None:
        raise NotYet(f"{kind} {name!r} not found")
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}
    return {key: value.encode() for key, value in found.get("data", {}).items()}


def _lay(place: Path, content: Mapping[str, bytes], source: Json) -> None:
    items = {item["key"]: item["path"] for item in source.get("items", [])} or {key: key for key in content}
    for key, path in items.items():
        (place / path).write_bytes(content[key])
        (place / path).chmod(0o644)


def _project(api: Api, pod: Json, place: Path, source: Json) -> None:
    match source:
        case {"serviceAccountToken": asked}:
            token = api.token_of(pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"])
            (place / asked["path"]).write_text(token)
        case {"configMap": asked}:
            _lay(place, _content(api, pod, "configmaps", asked["name"]), asked)
        case {"downwardAPI": asked}:
            for item in asked["items"]:
                (place / item["path"]).write_text(pod["metadata"][item["fieldRef"]["fieldPath"].split(".")[1]])
        case _:
            raise AssertionError(f"no such projection here: {source}")


def _claim_path(api: Api, pod: Json, claim: str) -> Path:
    found = api.find(f"/api/v1/namespaces/{pod['metadata']['namespace']}/persistentvolumeclaims/{claim}")
    if found is None or not found["spec"].get("volumeName"):
        raise NotYet(f"persistentvolumeclaim {claim!r} is not bound")
    return Path(api.get(f"/api/v1/persistentvolumes/{found['spec']['volumeName']}")["spec"]["hostPath"]["path"])


def forget(folder: Path) -> None:
    """Remove what was laid out."""
    shutil.rmtree(folder, ignore_errors=True)
