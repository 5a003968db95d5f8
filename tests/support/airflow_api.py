"""A few addresses of Airflow's API, as Airflow 3.3 answers: what the hook asks, and no more."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers.scripted import HttpRequest, Reply

ASSET = "s3://lake/clicks"
USER = "headrace"
PASSWORD = "a-pass,=word"
_EPOCH = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass
class AirflowApi:
    """Assets, their events, one user, and tokens that are good or expired; a key that changed knows no other."""

    version: str = "3.3.2"
    # So many items at most for one request.
    page: int = 100
    assets: list[dict[str, Any]] = field(default_factory=lambda: [{"id": 7, "uri": ASSET, "name": "clicks"}])
    events: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    logins: int = 0
    # Answers of the next posts of events, instead of what they would be. The event is created all the same.
    lost: list[Reply] = field(default_factory=list)

    def __call__(self, request: HttpRequest) -> Reply:
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/auth/token":
            return self._log_in(request.json())
        if url.path in ("/api/v1/version", "/api/v2/version"):
            is_there = url.path == f"/api/v{2 if self.version[0] == '3' else 1}/version"
            return Reply(200, {"version": self.version}) if is_there else Reply(404, {"detail": "Not Found"})
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not token:
            return Reply(401, {"detail": "Not authenticated"})
        if token in self.expired:
            return Reply(401, {"detail": "Token Expired"})
        if token not in self.tokens:
            return Reply(403, {"detail": "Invalid JWT token"})
        match request.method, url.path:
            case "GET", "/api/v2/assets":
                return self._page("assets", [asset for asset in self.assets if _fits(asset, query)], query)
            case "GET", "/api/v2/assets/events":
                return self._page("asset_events", self._list_events(query), query)
            case "POST", "/api/v2/assets/events":
                return self._create_event(request.json())
        return Reply(404, {"detail": "Not Found"})

    def _log_in(self, document: dict[str, str]) -> Reply:
        if document != {"username": USER, "password": PASSWORD}:
            return Reply(401, {"detail": "Invalid credentials"})
        self.logins += 1
        self.tokens.append(f"t0ken-{self.logins}")
        return Reply(201, {"access_token": self.tokens[-1]})

    def _create_event(self, document: dict[str, Any]) -> Reply:
        if document["asset_id"] not in [asset["id"] for asset in self.assets]:
            return Reply(404, {"detail": f"Asset with ID: `{document['asset_id']}` was not found"})
        timestamp = _EPOCH + timedelta(seconds=len(self.events))
        event = {**document, "id": len(self.events) + 1, "timestamp": timestamp.isoformat().replace("+00:00", "Z")}
        self.events.append(json.loads(json.dumps(event)))
        if self.lost:
            return self.lost.pop(0)
        return Reply(200, event)

    def _list_events(self, query: dict[str, str]) -> list[dict[str, Any]]:
        assert query["order_by"] == "-timestamp"
        since = datetime.fromisoformat(query.get("timestamp_gte", "2000-01-01T00:00:00Z"))
        return [
            event
            for event in reversed(self.events)
            if event["asset_id"] == int(query["asset_id"]) and datetime.fromisoformat(event["timestamp"]) >= since
        ]

    def _page(self, key: str, items: list[dict[str, Any]], query: dict[str, str]) -> Reply:
        offset = int(query["offset"])
        page = items[offset : offset + min(self.page, int(query["limit"]))]
        return Reply(200, {key: page, "total_entries": len(items)})


def _fits(asset: dict[str, Any], query: dict[str, str]) -> bool:
    return query.get("uri_pattern", "") in asset["uri"] and query.get("name_pattern", "") in asset["name"]
