"""The Druid hook: replaces exactly the interval of a sealed bucket.

The task's id says which version of which bucket it carries, so a look after a crash finds the running task and
does not start a second one. Druid takes no id twice: the try that follows a failure has the next number.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from writer.clients.http import Answer, ask_leader, host, login
from writer.config.hooks import Druid
from writer.core import fault_points
from writer.engines.druid_spec import bucket_task, interval_text
from writer.hooks.base import Delivered, HookFailed, Per, Sealed, StillRunning

_TASKS = "/druid/indexer/v1/task"
_LOOK_AGAIN = timedelta(seconds=2)
_NOT_SOON = timedelta(hours=1)  # a person must look, and each try costs Druid a task
_NOT_FOUND = 404
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")
_LOOKS_FOR_NEW_MAX = 30  # at a task that was accepted and is not known yet


class DruidHook:
    """One datasource of one Druid."""

    newest_only = True
    per: Per = "interval"

    def __init__(self, settings: Druid, pipeline: str) -> None:
        self.name, self.at_once = settings.name, settings.at_once
        self._settings, self._datasource = settings, settings.datasource or pipeline
        self._url = settings.url.get_secret_value()
        self.target = f"{host(self._url)}, datasource {self._datasource}"
        self._headers = {
            "Content-Type": "application/json", **login(settings.user, settings.password, settings.token),
        }  # fmt: skip

    def deliver(self, sealed: Sealed, state: Mapping[str, Any]) -> Delivered | StillRunning:
        """Start the task of this version, or check its status."""
        manifest = sealed.manifest
        if manifest.start is None or manifest.end is None:
            raise HookFailed(f"{manifest.name} has no interval of time, and Druid stores by time; remove this hook")
        files = sealed.files()
        if sealed.retired or not sum(file.rows or 0 for file in files):
            return self._emptied((manifest.start, manifest.end))
        number = int(state.get("try", 1))
        while True:
            task_id = self._task_id(sealed, number)
            status = self._status(task_id)
            if status is None and state.get("accepted") == task_id:
                looks = int(state.get("looks", 0)) + 1
                if looks > _LOOKS_FOR_NEW_MAX:
                    raise HookFailed(f"task {task_id} was accepted, and Druid does not know it", state={"try": number})
                return StillRunning(f"task {task_id} accepted", _LOOK_AGAIN, {**state, "looks": looks})
            if status is None:
                return self._submitted(sealed, task_id, number, [file.path for file in files])
            match status.get("statusCode") or status.get("status"):
                case "SUCCESS":
                    rows = self._taken(task_id, sum(file.rows or 0 for file in files), number)
                    return Delivered(f"rows: {rows:,}, by task {task_id}")
                case "FAILED" if state.get("accepted") != task_id:
                    number += 1  # what waited for it is gone
                case "FAILED":
                    raise HookFailed(
                        f"task {task_id} failed: {status.get('errorMsg') or 'Druid gives no reason; see its log'}",
                        state={"try": number + 1},
                    )
                case _:
                    return StillRunning(f"task {task_id} runs", _LOOK_AGAIN, {"try": number, "accepted": task_id})

    def _submitted(self, sealed: Sealed, task_id: str, number: int, files: list[str]) -> StillRunning:
        manifest = sealed.manifest
        assert manifest.start is not None
        assert manifest.end is not None
        task = bucket_task(
            sealed.table, files, (manifest.start, manifest.end), datasource=self._datasource, task_id=task_id,
            input_source=self._settings.input_source, spec=self._settings.spec,
        )  # fmt: skip
        answer = self._ask(_TASKS, task)
        if not answer.ok:
            raise HookFailed(f"Druid refused the task: {_reason(answer)}", state={"try": number})
        fault_points.point("hook_submitted")
        return StillRunning(f"task {task_id} accepted", _LOOK_AGAIN, {"try": number, "accepted": task_id})

    def _status(self, task_id: str) -> Mapping[str, Any] | None:
        """Return the status of a task; None if Druid does not know it."""
        answer = self._ask(f"{_TASKS}/{quote(task_id)}/status")
        if answer.status == _NOT_FOUND:
            return None
        if not answer.ok:
            raise HookFailed(f"Druid does not tell of task {task_id}: {_reason(answer)}")
        found: Mapping[str, Any] = answer.json().get("status") or {}
        return found

    def _taken(self, task_id: str, wanted: int, number: int) -> int:
        """Return how many rows the task took. Raises HookFailed when they are not those of the files."""
        answer = self._ask(f"{_TASKS}/{quote(task_id)}/reports")
        if not answer.ok:
            raise HookFailed(f"Druid has no report of task {task_id}: {_reason(answer)}", state={"try": number})
        stats = answer.json().get("ingestionStatsAndErrors", {}).get("payload", {}).get("rowStats", {})
        counts = stats.get("totals", stats).get("buildSegments", {})
        rows = int(counts.get("processed", 0)) + int(counts.get("processedWithError", 0))
        if rows != wanted:
            raise HookFailed(
                f"task {task_id} took {rows:,} of {wanted:,} rows: {counts.get('thrownAway', 0):,} lie outside "
                f"the bucket's interval by their own time, {counts.get('unparseable', 0):,} could not be read. Look at "
                "event_time and `spec`",
                after=_NOT_SOON,
                state={"try": number + 1},
            )
        return rows

    def _emptied(self, interval: tuple[Any, Any]) -> Delivered:
        """Let Druid forget an interval that holds no row any more: a task without rows replaces nothing."""
        path = f"/druid/coordinator/v1/datasources/{quote(self._datasource, safe='')}/markUnused"
        answer = self._ask(path, {"interval": interval_text(interval)})
        if not answer.ok and answer.status != _NOT_FOUND:
            raise HookFailed(f"Druid did not drop the interval: {_reason(answer)}")
        return Delivered("the interval holds no row: dropped")

    def _task_id(self, sealed: Sealed, number: int) -> str:
        manifest = sealed.manifest
        identity = json.dumps([sealed.table.id, self.name, manifest.start, manifest.end, sealed.entry], default=str)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        bucket = "_".join(_ODD.sub("_", str(value)) for value in manifest.bucket)
        return f"headrace_{_ODD.sub('_', self._datasource)}_{bucket}_v{manifest.version}_{digest}_{number}"

    def _ask(self, path: str, body: Any = None) -> Answer:
        return ask_leader(
            f"{self._url}{path}", method="GET" if body is None else "POST", headers=self._headers,
            body=None if body is None else json.dumps(body).encode(),
            timeout_s=self._settings.timeout.total_seconds(),
        )  # fmt: skip


def _reason(answer: Answer) -> str:
    """Return Druid's error text: its errors are JSON in several shapes, or text."""
    try:
        document = json.loads(answer.body)
    except ValueError:
        return answer.shown()
    message = document.get("errorMessage") or document.get("error") if isinstance(document, dict) else None
    return f"{answer.status}: {message}" if isinstance(message, str) else answer.shown()
