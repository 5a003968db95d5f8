"""The Druid hook: replaces exactly the interval of a sealed bucket.

The task's id says which version of which bucket it carries, so a look after a crash finds the running task and
does not start a second one. Druid takes no id twice: the try that follows a failure has the next number.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from headrace.writer.config.sections.hooks import Druid
from headrace.writer.core import fault_points
from headrace.writer.core.http import Answer, ask_leader, host, login
from headrace.writer.engines.druid_spec import bucket_task, interval_text
from headrace.writer.hooks.base import HookFailed, Per, Receipt, SealedVersion, StillRunning

_TASKS = "/druid/indexer/v1/task"
_LOOK_AGAIN = timedelta(seconds=2)
# A person must look at the table, and each attempt costs Druid a task.
_NOT_SOON = timedelta(hours=1)
_NOT_FOUND = 404
_FORBIDDEN_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")
# How often a task is looked for that Druid accepted and does not list yet.
_LOOKS_FOR_NEW_MAX = 30


class DruidHook:
    """One datasource of one Druid."""

    newest_only = True
    per: Per = "interval"

    def __init__(self, settings: Druid, pipeline: str) -> None:
        self.name = settings.name
        self.at_once = settings.at_once
        self._settings = settings
        self._datasource = settings.datasource or pipeline
        self._url = settings.url.get_secret_value()
        self.target = f"{host(self._url)}, datasource {self._datasource}"
        self._headers = {"Content-Type": "application/json"}
        self._headers |= login(settings.user, settings.password, settings.token)

    def check(self) -> bool:
        """Ask how the server is."""
        answer = self._ask("/status/health")
        if not answer.ok:
            raise HookFailed(f"{host(self._url)} does not tell how it is: {_reason(answer)}")
        return True

    def deliver(self, sealed: SealedVersion, state: Mapping[str, Any]) -> Receipt | StillRunning:
        """Start the task of this version, or check its status."""
        manifest = sealed.manifest
        if manifest.start is None or manifest.end is None:
            raise HookFailed(f"{manifest.name} has no interval of time, and Druid stores by time; remove this hook")
        interval = (manifest.start, manifest.end)
        files = sealed.files()
        rows = sum(file.rows or 0 for file in files)
        if sealed.retired or not rows:
            return self._drop_interval(interval)
        number = int(state.get("try", 1))
        while True:
            task_id = self._task_id(sealed, number)
            status = self._status(task_id)
            if status is None and state.get("accepted") == task_id:
                looks = int(state.get("looks", 0)) + 1
                if looks > _LOOKS_FOR_NEW_MAX:
                    raise HookFailed(f"task {task_id} was accepted, and Druid does not know it", state={"try": number})
                return StillRunning(_LOOK_AGAIN, {**state, "looks": looks})
            if status is None:
                task = bucket_task(
                    sealed.table,
                    [file.path for file in files],
                    interval,
                    datasource=self._datasource,
                    task_id=task_id,
                    input_source=self._settings.input_source,
                    spec=self._settings.spec,
                )
                return self._submit(task, task_id, number)
            match status.get("statusCode") or status.get("status"):
                case "SUCCESS":
                    self._check_ingested_rows(task_id, rows, number)
                    return Receipt(f"rows: {rows:,}, by task {task_id}")
                case "FAILED" if state.get("accepted") != task_id:
                    # Nothing waits for this task any more: it failed before a crash. The next number is free.
                    number += 1
                case "FAILED":
                    raise HookFailed(
                        f"task {task_id} failed: {status.get('errorMsg') or 'Druid gives no reason; see its log'}",
                        state={"try": number + 1},
                    )
                case _:
                    return StillRunning(_LOOK_AGAIN, {"try": number, "accepted": task_id})

    def _submit(self, task: Mapping[str, Any], task_id: str, number: int) -> StillRunning:
        answer = self._ask(_TASKS, task)
        if not answer.ok:
            raise HookFailed(f"Druid refused the task: {_reason(answer)}", state={"try": number})
        fault_points.point("hook_submitted")
        return StillRunning(_LOOK_AGAIN, {"try": number, "accepted": task_id})

    def _status(self, task_id: str) -> Mapping[str, Any] | None:
        """Return the status of a task; None if Druid does not know it."""
        answer = self._ask(f"{_TASKS}/{quote(task_id)}/status")
        if answer.status == _NOT_FOUND:
            return None
        if not answer.ok:
            raise HookFailed(f"Druid does not tell of task {task_id}: {_reason(answer)}")
        status: Mapping[str, Any] = answer.json().get("status") or {}
        return status

    def _check_ingested_rows(self, task_id: str, expected: int, number: int) -> None:
        """Raise HookFailed unless the task ingested as many rows as its files have."""
        answer = self._ask(f"{_TASKS}/{quote(task_id)}/reports")
        if not answer.ok:
            raise HookFailed(f"Druid has no report of task {task_id}: {_reason(answer)}", state={"try": number})
        stats = answer.json().get("ingestionStatsAndErrors", {}).get("payload", {}).get("rowStats", {})
        counts = stats.get("totals", stats).get("buildSegments", {})
        rows = int(counts.get("processed", 0)) + int(counts.get("processedWithError", 0))
        if rows != expected:
            raise HookFailed(
                f"task {task_id} took {rows:,} of {expected:,} rows: {counts.get('thrownAway', 0):,} lie outside "
                f"the bucket's interval by their own time, {counts.get('unparseable', 0):,} could not be read. Look at "
                "event_time and `spec`",
                after=_NOT_SOON,
                state={"try": number + 1},
            )

    def _drop_interval(self, interval: tuple[datetime, datetime]) -> Receipt:
        """Let Druid forget an interval that holds no row any more: a task without rows replaces nothing."""
        path = f"/druid/coordinator/v1/datasources/{quote(self._datasource, safe='')}/markUnused"
        answer = self._ask(path, {"interval": interval_text(interval)})
        if not answer.ok and answer.status != _NOT_FOUND:
            raise HookFailed(f"Druid did not drop the interval: {_reason(answer)}")
        return Receipt("the interval holds no row: dropped")

    def _task_id(self, sealed: SealedVersion, number: int) -> str:
        manifest = sealed.manifest
        identity = json.dumps([sealed.table.id, self.name, manifest.start, manifest.end, sealed.entry], default=str)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        datasource = _FORBIDDEN_IN_IDS.sub("_", self._datasource)
        bucket = "_".join(_FORBIDDEN_IN_IDS.sub("_", str(value)) for value in manifest.bucket)
        return f"headrace_{datasource}_{bucket}_v{manifest.version}_{digest}_{number}"

    def _ask(self, path: str, document: Mapping[str, Any] | None = None) -> Answer:
        """Ask Druid's leader: POST the document, or GET without one."""
        url = f"{self._url}{path}"
        timeout_s = self._settings.timeout.total_seconds()
        if document is None:
            return ask_leader(url, headers=self._headers, timeout_s=timeout_s)
        body = json.dumps(document).encode()
        return ask_leader(url, method="POST", body=body, headers=self._headers, timeout_s=timeout_s)


def _reason(answer: Answer) -> str:
    """Return Druid's error text: its errors are JSON in several shapes, or text."""
    try:
        document = json.loads(answer.body)
    except ValueError:
        return answer.summary()
    if not isinstance(document, dict):
        return answer.summary()
    message = document.get("errorMessage") or document.get("error")
    return f"{answer.status}: {message}" if isinstance(message, str) else answer.summary()
