"""The Dagster hook: reports a materialisation of the partition that is the bucket, and what an audit found.

The data version of a materialisation is that of the delivery, so a delivery looks first whether Dagster has it.
"""

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headrace.writer.config.sections.hooks import Dagster
from headrace.writer.core import fault_points
from headrace.writer.core.http import Answer, ask, host, login
from headrace.writer.hooks.base import HookFailed, Per, Receipt, SealedVersion, partition_key

# What `headrace audit --report` reports.
CHECK = "headrace_audit"
_DATA_VERSION = "dagster/data_version"
_UNAUTHORIZED = (401, 403)
# Newest materialisations of a partition among which a delivery is looked for.
_MATERIALIZATIONS = 10
_ASSET = """
query Headrace($asset: AssetKeyInput!, $partitions: [String!], $limit: Int) {
  assetNodeOrError(assetKey: $asset) {
    ... on AssetNode {
      partitionDefinition { type fmt name }
      repository { name location { name } }
      assetMaterializations(partitions: $partitions, limit: $limit) { tags { key value } }
    }
  }
}
"""
_ADD_PARTITION = """
mutation Headrace($repository: RepositorySelector!, $definition: String!, $key: String!) {
  addDynamicPartition(repositorySelector: $repository, partitionsDefName: $definition, partitionKey: $key) {
    __typename
    ... on UnauthorizedError { message }
    ... on PythonError { message }
  }
}
"""
_ADDED = ("AddDynamicPartitionSuccess", "DuplicateDynamicPartitionError")


class DagsterHook:
    """One asset of one Dagster. Each version of each bucket comes, in order."""

    newest_only = False
    at_once = 1
    per: Per = "bucket"

    def __init__(self, settings: Dagster) -> None:
        self.name = settings.name
        self._settings = settings
        self._url = settings.url.get_secret_value()
        self._asset = settings.asset.split("/")
        self.target = f"{host(self._url)}, asset {settings.asset}"
        self._headers = {"Content-Type": "application/json"}
        if settings.token is not None:
            self._headers["Dagster-Cloud-Api-Token"] = settings.token.get_secret_value()
        self._headers |= login(settings.user, settings.password, None)

    def check(self) -> bool:
        """Ask for the asset."""
        self._node("")
        return True

    def deliver(self, sealed: SealedVersion, state: Mapping[str, Any]) -> Receipt:  # noqa: ARG002 - no request outlasts a call
        """Report the materialisation, unless Dagster has it."""
        manifest = sealed.manifest
        # Dagster orders the dimensions of a partition by their names.
        key = partition_key(dict(sorted(zip(manifest.columns, manifest.bucket, strict=True))))
        data_version = f"v{manifest.version}-{sealed.delivery_id.removeprefix('msg_')[:8]}"
        node = self._node(key)
        tag = {"key": _DATA_VERSION, "value": data_version}
        if any(tag in materialization["tags"] for materialization in node["assetMaterializations"]):
            return Receipt(f"data version {data_version} was there")
        self._check_partition(node, key)
        self._post(
            f"/report_asset_materialization/{self._path}",
            {
                "partition": key or None,
                "data_version": data_version,
                "metadata": sealed.facts(),
                "description": f"{manifest.name} {sealed.reason}, version {manifest.version}",
            },
        )
        fault_points.point("hook_submitted")
        return Receipt(f"data version {data_version}")

    def report_audit(self, *, adds_up: bool, metadata: Mapping[str, Any]) -> None:
        """Report what an audit of all the table found, as an asset check. Raises HookFailed, RequestFailed."""
        self._node("")
        document = {"check_name": CHECK, "passed": adds_up, "severity": "ERROR", "metadata": metadata}
        self._post(f"/report_asset_check/{self._path}", document)

    @property
    def _path(self) -> str:
        return "/".join(quote(part, safe="") for part in self._asset)

    def _node(self, key: str) -> Mapping[str, Any]:
        """Return the asset and the newest materialisations of a partition. Raises HookFailed where it is not there."""
        variables = {
            "asset": {"path": self._asset},
            "partitions": [key] if key else None,
            "limit": _MATERIALIZATIONS,
        }
        node = self._query(_ASSET, variables, "assetNodeOrError")
        if "repository" not in node:
            raise HookFailed(
                f"{host(self._url)} has no asset {self._settings.asset}; let a code location define it, or correct "
                "'asset'"
            )
        return node

    def _check_partition(self, node: Mapping[str, Any], key: str) -> None:
        """Raise HookFailed for an asset without this partition; add it where partitions are added one by one."""
        definition = node["partitionDefinition"]
        if definition is None and key:
            raise HookFailed(f"asset {self._settings.asset} has no partitions; give its definition a partitions_def")
        if definition is None:
            return
        match definition["type"]:
            case "TIME_WINDOW":
                try:
                    time.strptime(key, definition["fmt"])
                except ValueError as error:
                    raise HookFailed(
                        f"a partition of asset {self._settings.asset} is written as {definition['fmt']}, and the "
                        f"bucket is {key}; give its partitions_def a fmt that fits"
                    ) from error
            case "DYNAMIC":
                repository = node["repository"]
                selector = {
                    "repositoryName": repository["name"],
                    "repositoryLocationName": repository["location"]["name"],
                }
                variables = {"repository": selector, "definition": definition["name"], "key": key}
                result = self._query(_ADD_PARTITION, variables, "addDynamicPartition")
                if result.get("__typename") not in _ADDED:
                    raise HookFailed(f"{host(self._url)} added no partition: {result.get('message')}")

    def _query(self, query: str, variables: Mapping[str, Any], field: str) -> Mapping[str, Any]:
        """Run a GraphQL query. Returns its one field. Raises HookFailed."""
        document = self._post("/graphql", {"query": query, "variables": variables})
        try:
            if errors := document.get("errors"):
                raise HookFailed(f"{host(self._url)} refused a query: {errors[0]['message']}")
            result: Mapping[str, Any] = document["data"][field]
        except (AttributeError, KeyError, TypeError) as error:
            raise HookFailed(f"{host(self._url)} does not answer as Dagster; correct 'url'") from error
        return result

    def _post(self, path: str, document: Mapping[str, Any]) -> Any:
        """POST a document. Returns what Dagster answers, as JSON. Raises HookFailed where it refuses."""
        answer = ask(
            f"{self._url}{path}",
            method="POST",
            body=json.dumps(document).encode(),
            headers=self._headers,
            timeout_s=self._settings.timeout.total_seconds(),
        )
        if not answer.ok:
            raise HookFailed(f"{host(self._url)} answered {_message(answer)}", after=answer.after)
        return answer.json()


def _message(answer: Answer) -> str:
    hint = " (user, password or token)" if answer.status in _UNAUTHORIZED else ""
    return answer.summary() + hint
