"""Checks objects against the schemas of versions of Kubernetes, of which no server is here to be asked.

A program of its own: what it imports is schemas.lock, which PYTHONPATH has. It reads the objects as a JSON mapping of
names, and says for each version of the command line what is wrong with which of them; and which versions there are.
"""

import json
import re
import sys
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"
Json = dict[str, Any]


def schema(version: str, name: str) -> Json:
    """Return a schema that refuses fields it does not know."""
    document: Json = json.loads((SCHEMAS / f"v{version}.0-local-strict" / f"{name}.json").read_text())
    return document


def versions() -> list[str]:
    """Return all that have schemas, oldest first."""
    found = {match[1] for path in SCHEMAS.iterdir() if (match := re.fullmatch(r"v(1\.\d+)\.0-local-strict", path.name))}
    return sorted(found, key=lambda version: int(version.partition(".")[2]))


def wrong(version: str, objects: dict[str, Json]) -> dict[str, str]:
    """Say what this version finds wrong with which object."""
    registry = Resource.from_contents(schema(version, "_definitions")) @ Registry()
    known: dict[str, Draft202012Validator] = {}
    found = {}
    for name, document in objects.items():
        group = re.sub(r"\..*/|/", "-", document["apiVersion"])  # rbac.authorization.k8s.io/v1 is rbac-v1
        kind = f"{document['kind'].lower()}-{group}"
        if kind not in known:
            known[kind] = Draft202012Validator(schema(version, kind), registry=registry.crawl())
        errors = [f"{error.json_path}: {error.message[:200]}" for error in known[kind].iter_errors(document)]
        if errors:
            found[name] = "; ".join(errors)
    return found


if __name__ == "__main__":
    given = json.load(sys.stdin)
    json.dump({"known": versions(), "wrong": {version: wrong(version, given) for version in sys.argv[1:]}}, sys.stdout)
