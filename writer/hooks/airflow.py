"""The Airflow hook: creates an asset event whose partition key is the bucket (Airflow 3.2, AIP-76).

Airflow has no key of idempotence. So an event has the id of its delivery, and a delivery looks for its id first.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from headrace.writer.config.sections.hooks import Airflow
from headrace.writer.core import fault_points
from headrace.writer.core.http import Answer, ask, host, login
from headrace.writer.hooks.base import HookFailed, Per, Receipt, SealedVersion, partition_key

_API = "/api/v2"
# The first that takes a partition key.
_VERSION_MIN = (3, 2)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_UNAUTHORIZED = 401
_FORBIDDEN = 403
# Of a token that expired, and of one that was signed before Airflow had another key.
_LOGIN_ENDED = (_UNAUTHORIZED, _FORBIDDEN)
_NOT_FOUND = 404
# Characters of a partition key that Airflow's database takes.
_KEY_MAX = 250
# A server may give fewer for one request.
_PAGE = 100
# The events that a process looks through when it begins.
_EVENTS_MAX = 1000
# Airflow stamps an event before it is there to be read. Thousands of buckets that wait are delivered a few each second.
_OVERLAP = timedelta(seconds=10)


class AirflowHook:
    """One asset of one Airflow. Each version of each bucket comes, in order."""

    newest_only = False
    at_once = 1
    per: Per = "bucket"

    def __init__(self, settings: Airflow) -> None:
        self.name = settings.name
        self._settings = settings
        self._url = settings.url.get_secret_value()
        self.target = f"{host(self._url)}, asset {settings.asset}"
        # What Airflow gave for user and password; it ends after a day, unless configured otherwise.
        self._login: dict[str, str] | None = None
        self._asset_id: int | None = None
        # Events by the id of their delivery, oldest first, and when the newest that was read was created.
        self._events: dict[str, int] = {}
        self._newest: datetime | None = None

    def check(self) -> bool:
        """Ask for the version and the asset."""
        try:
            self._find_asset()
        except (KeyError, TypeError, ValueError) as error:
            raise self._other_server() from error
        return True

    def deliver(self, sealed: SealedVersion, state: Mapping[str, Any]) -> Receipt:  # noqa: ARG002 - no request outlasts a call
        """Create the event, unless it is there."""
        try:
            return self._create_event(sealed)
        except (KeyError, TypeError, ValueError) as error:
            raise self._other_server() from error

    def _other_server(self) -> HookFailed:
        return HookFailed(f"{host(self._url)} does not answer as Airflow; correct 'url'")

    def _create_event(self, sealed: SealedVersion) -> Receipt:
        manifest = sealed.manifest
        key = partition_key(dict(zip(manifest.columns, manifest.bucket, strict=True)))
        if len(key) > _KEY_MAX:
            raise HookFailed(
                f"the partition key has {len(key)} characters, and Airflow takes {_KEY_MAX}; bucket by shorter values"
            )
        if self._asset_id is None:
            self._asset_id = self._find_asset()
        self._read_events(self._asset_id)
        if sealed.delivery_id in self._events:
            return Receipt(f"event {self._events[sealed.delivery_id]} was there")
        document = {"asset_id": self._asset_id, "extra": sealed.facts(), "partition_key": key or None}
        answer = self._ask(f"{_API}/assets/events", document)
        if answer.status == _NOT_FOUND:
            # The asset went, or Airflow has another database.
            self._asset_id = None
        event = self._read(answer, "created no event")
        fault_points.point("hook_submitted")
        return Receipt(f"event {event['id']}")

    def _find_asset(self) -> int:
        """Return the id of the asset that has the configured URI or name."""
        self._check_version()
        asset = self._settings.asset
        for field in ("uri", "name"):
            for candidate in self._items("assets", "assets", {f"{field}_pattern": asset}):
                if candidate[field] == asset:
                    return int(candidate["id"])
        raise HookFailed(
            f"{host(self._url)} has no active asset with the URI or name {asset!r}; let a DAG name it, or correct "
            "'asset'"
        )

    def _check_version(self) -> None:
        """Raise HookFailed for an Airflow whose events have no partition key."""
        answer = self._ask(f"{_API}/version")
        if answer.status == _NOT_FOUND:
            # Airflow 2 has the older interface alone.
            answer = self._ask("/api/v1/version")
        version = str(self._read(answer, "does not tell its version").get("version"))
        match = _VERSION.match(version)
        if match is None or (int(match[1]), int(match[2])) < _VERSION_MIN:
            raise HookFailed(
                f"{host(self._url)} is Airflow {version}, whose asset events have no partition key; use 3.2 or newer"
            )

    def _read_events(self, asset_id: int) -> None:
        """Read which deliveries the newest events are of: since the last time, or the first time so many."""
        query: dict[str, Any] = {"asset_id": asset_id, "order_by": "-timestamp"}
        if self._newest is not None:
            query["timestamp_gte"] = (self._newest - _OVERLAP).isoformat()
        events = list(self._items("assets/events", "asset_events", query))
        for event in reversed(events):
            delivery = (event.get("extra") or {}).get("delivery")
            if delivery is not None:
                self._events[delivery] = event["id"]
            self._newest = datetime.fromisoformat(event["timestamp"])
        while len(self._events) > 2 * _EVENTS_MAX:
            del self._events[next(iter(self._events))]

    def _items(self, collection: str, key: str, query: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the items of a collection, page by page: so many at most. `key`: where a page has its items."""
        offset = 0
        while offset < _EVENTS_MAX:
            path = f"{_API}/{collection}?{urlencode({**query, 'limit': _PAGE, 'offset': offset})}"
            page = self._read(self._ask(path), f"does not list {collection}")
            items = page[key]
            yield from items
            offset += len(items)
            if not items or offset >= page["total_entries"]:
                return

    def _read(self, answer: Answer, failure: str) -> Mapping[str, Any]:
        """Return the document of an answer. Raises HookFailed where Airflow refused; `failure`: what it did not do."""
        if not answer.ok:
            hint = {
                _UNAUTHORIZED: " (user, password or token)",
                _FORBIDDEN: " (the user needs the right to read assets and to create asset events, as role Op has)",
            }.get(answer.status, "")
            raise HookFailed(f"{host(self._url)} {failure}: {answer.summary()}{hint}", after=answer.after)
        document: Mapping[str, Any] = answer.json()
        return document

    def _ask(self, path: str, document: Mapping[str, Any] | None = None) -> Answer:
        """POST the document, or GET without one; with a new token where the last one ended."""
        was_logged_in = self._login is not None
        answer = self._ask_once(path, document)
        if answer.status in _LOGIN_ENDED and was_logged_in and self._settings.password is not None:
            self._login = None
            answer = self._ask_once(path, document)
        return answer

    def _ask_once(self, path: str, document: Mapping[str, Any] | None) -> Answer:
        if self._login is None:
            self._login = self._log_in()
        return self._send(path, document, self._login)

    def _log_in(self) -> dict[str, str]:
        """Return the header with the configured token, or with a new one for user and password."""
        settings = self._settings
        if settings.user is None or settings.password is None:
            return login(None, None, settings.token)
        credentials = {"username": settings.user, "password": settings.password.get_secret_value()}
        answer = self._send("/auth/token", credentials, {})
        if not answer.ok:
            raise HookFailed(f"{host(self._url)} gives {settings.user} no token: {answer.summary()}")
        return {"Authorization": f"Bearer {answer.json()['access_token']}"}

    def _send(self, path: str, document: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Answer:
        url = f"{self._url}{path}"
        timeout_s = self._settings.timeout.total_seconds()
        if document is None:
            return ask(url, headers=headers, timeout_s=timeout_s)
        headers = {**headers, "Content-Type": "application/json"}
        return ask(url, method="POST", body=json.dumps(document).encode(), headers=headers, timeout_s=timeout_s)
