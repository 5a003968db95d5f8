"""A few addresses of Dagster's web server, as Dagster 1.13 answers: what the hook asks, and no more."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.servers.scripted import HttpRequest, Reply

ASSET = "lake/clicks"
HOURS = {"type": "TIME_WINDOW", "fmt": "%Y-%m-%dT%H", "name": None}
_REPOSITORY = {"name": "__repository__", "location": {"name": "defs"}}


@dataclass
class DagsterApi:
    """Assets with the definitions of their partitions, and what was reported of them."""

    assets: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {ASSET: HOURS})
    materializations: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    added: list[dict[str, Any]] = field(default_factory=list)
    # Answers of the next reports, instead of what they would be. What they report is recorded all the same.
    lost: list[Reply] = field(default_factory=list)

    def __call__(self, request: HttpRequest) -> Reply:
        endpoint, _, asset = unquote(request.path).removeprefix("/").partition("/")
        document = request.json()
        match endpoint:
            case "graphql":
                return Reply(200, {"data": self._query(document["query"], document["variables"])})
            case "report_asset_materialization":
                self.materializations.append({"asset": asset, **document})
            case "report_asset_check":
                self.checks.append({"asset": asset, **document})
            case _:
                return Reply(404, b"Not Found")
        if self.lost:
            return self.lost.pop(0)
        return Reply(200, {})

    def _query(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "addDynamicPartition" in query:
            kind = "DuplicateDynamicPartitionError" if variables in self.added else "AddDynamicPartitionSuccess"
            self.added.append(variables)
            return {"addDynamicPartition": {"__typename": kind}}
        asset = "/".join(variables["asset"]["path"])
        if asset not in self.assets:
            return {"assetNodeOrError": {}}
        tags = [
            {"tags": [{"key": "dagster/data_version", "value": report["data_version"]}]}
            for report in reversed(self.materializations)
            if report["asset"] == asset and variables["partitions"] in (None, [report["partition"]])
        ]
        node = {
            "partitionDefinition": self.assets[asset],
            "repository": _REPOSITORY,
            "assetMaterializations": tags[: variables["limit"]],
        }
        return {"assetNodeOrError": node}
