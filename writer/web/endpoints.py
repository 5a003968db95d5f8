"""The driver's HTTP endpoints: `/status`, `/metrics`, health checks and others.

A page for people, `/metrics` for Prometheus, `/healthz` and `/readyz` for a supervisor, `/rolloutz` for the rollout of
a version, `/status` for `headrace status`. Three requests change something, from this machine and with a token: a
supervisor may start a pipeline that has ended, or end one whose lease it has lost, and an autoscaler may set how many
executors there should be. Live records need another token, where they are switched on.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from headrace.writer.config.sections.connections import Http
from headrace.writer.status.document import document, overview
from headrace.writer.status.model import View
from headrace.writer.status.progress import Progress
from headrace.writer.web import page
from headrace.writer.web.http_server import (
    NOT_HERE,
    TEXT,
    Answer,
    Guarded,
    Post,
    answering,
    has_token,
    json_answer,
    nothing,
)
from headrace.writer.web.metrics_export import exposition

_INDEX = b"headrace; a browser is shown a page here\n\n/metrics\n/healthz\n/readyz\n/rolloutz\n/status\n/buckets\n"
_TOKEN_WANTED = b"this needs the token of the supervisor\n"
FRESH_STATUS = "/status?fresh=true"
# A person waits, and what is late says how old it is.
_REFRESH_WITHIN_S = 1.0
# Returns what `/status` says beside the pipelines.
More = Callable[[], Mapping[str, Any]]
_START = re.compile(r"/pipelines/([a-z0-9_-]+)/start(\?new_run=(true|false)(&lease=([0-9]{1,18}))?)?")

_SURRENDER = re.compile(r"/pipelines/([a-z0-9_-]+)/surrender\?lease=([0-9]{1,18})&holder=([^&]*)")


def alive(views: list[View]) -> list[str]:
    """Return why the driver is not healthy: one line for each pipeline that failed. A slow batch is no reason."""
    return [f"pipeline {view.pipeline} failed: {view.error}" for view in views if view.state == "failed"]


def ready(views: list[View]) -> list[str]:
    """Return why the driver is not ready: one line for each pipeline whose query has not started."""
    return [f"pipeline {view.pipeline} is starting" for view in views if view.state == "starting"] + alive(views)


def committed_since_start(views: list[View]) -> list[str]:
    """Return why the start is not proven: one line for each pipeline that has neither committed nor been up to date.

    What is paused commits nothing, and is as well as it was asked to be.
    """
    waiting = [view for view in views if not view.committed_since_start and view.pause is None]
    return ready(views) or [f"pipeline {view.pipeline} has {_missing_commit(view)}" for view in waiting]


def _missing_commit(view: View) -> str:
    if view.current_lease_wait is not None:
        return f"no commit yet: it waits, as {view.current_lease_wait.reason}"
    if view.rate_limit.holds:
        return "records waiting and no commit yet: its rate limit holds the first batch back"
    return "records waiting and no commit yet"


def pause_notes(views: list[View]) -> list[str]:
    """Return what is paused: one line for each pipeline. It is as well as it was asked to be."""
    return [f"pipeline {view.pipeline} is paused {view.pause.text}" for view in views if view.pause is not None]


def refresh(progresses: Iterable[Progress], within_s: float) -> None:
    """Let pipelines read anew what others may have changed, and wait for that so many seconds at most, for all."""
    awaits = [await_facts for progress in progresses for await_facts in progress.request_facts()]
    deadline_s = time.monotonic() + within_s
    for await_facts in awaits:
        await_facts(deadline_s - time.monotonic())


def answer(
    path: str, accept: str, progress_by_name: Mapping[str, Progress], now: datetime, more: More = dict
) -> Answer:
    """Answer a GET. `/status?fresh=true`: after a look at the tables, if that does not take too long."""
    if path == FRESH_STATUS:
        refresh(progress_by_name.values(), _REFRESH_WITHIN_S)
    views = [progress.view() for progress in progress_by_name.values()]
    match path.split("?", 1)[0]:
        case "/metrics":
            body, content_type = exposition(progress_by_name, accept, more().get("config", {}))
            return HTTPStatus.OK, content_type, body
        case "/status":
            return json_answer({**document(views, now), **more()})
        case "/healthz":
            return _verdict(alive(views))
        case "/readyz":
            return _verdict(ready(views), pause_notes(views))
        case "/rolloutz":
            return _verdict(committed_since_start(views), pause_notes(views))
        case "/buckets":
            return json_answer(overview(views, now))
        case "/" if "text/html" in accept:
            return HTTPStatus.OK, page.CONTENT_TYPE, page.content()
        case "/":
            return HTTPStatus.OK, TEXT, _INDEX
    return NOT_HERE


def starts(progress_by_name: Mapping[str, Progress], token: str, ask: Callable[[str, bool, int | None], None]) -> Post:
    """Answer `POST /pipelines/<name>/start` with the right token: request a start of a pipeline that has ended.

    `ask` takes its name, whether with a new run, and the epoch of its lease if that is sent.
    """

    def respond(path: str, authorization: str) -> Answer | None:
        match = _START.fullmatch(path)
        if match is None:
            return None
        if not has_token(token, authorization):
            return HTTPStatus.FORBIDDEN, TEXT, _TOKEN_WANTED
        progress = progress_by_name.get(match[1])
        if progress is None:
            return HTTPStatus.NOT_FOUND, TEXT, f"there is no pipeline {match[1]} here\n".encode()
        state = progress.view().state
        if state not in ("failed", "stopped", "waiting"):
            return HTTPStatus.CONFLICT, TEXT, f"pipeline {match[1]} has not ended: {state}\n".encode()
        epoch = None if match[5] is None else int(match[5])
        ask(match[1], match[3] == "true", epoch)
        return HTTPStatus.ACCEPTED, TEXT, b"asked\n"

    return respond


def surrenders(progress_by_name: Mapping[str, Progress], token: str, ask: Callable[[str, int, str], None]) -> Post:
    """Answer `POST /pipelines/<name>/surrender` with the right token: request that a pipeline ends as fenced.

    `ask` takes its name, the epoch of the lease that was lost, and the name of the new holder.
    """

    def respond(path: str, authorization: str) -> Answer | None:
        match = _SURRENDER.fullmatch(path)
        if match is None:
            return None
        if not has_token(token, authorization):
            return HTTPStatus.FORBIDDEN, TEXT, _TOKEN_WANTED
        if match[1] not in progress_by_name:
            return HTTPStatus.NOT_FOUND, TEXT, f"there is no pipeline {match[1]} here\n".encode()
        ask(match[1], int(match[2]), unquote(match[3]))
        return HTTPStatus.ACCEPTED, TEXT, b"asked\n"

    return respond


def _verdict(reasons: list[str], notes: list[str] | None = None) -> Answer:
    if reasons:
        return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, ("\n".join(reasons) + "\n").encode()
    return HTTPStatus.OK, TEXT, "\n".join(["ok", *(notes or []), ""]).encode()


@contextmanager
def serving(
    settings: Http,
    progress_by_name: Mapping[str, Progress],
    post: Post = nothing,
    guarded: Guarded = nothing,
    more: More = dict,
) -> Iterator[str | None]:
    """Serve while inside; gives the URL, None when it is switched off. Raises HeadraceError when the port is taken."""
    if not settings.enabled:
        yield None
        return

    def get(path: str, accept: str) -> Answer:
        return answer(path, accept, progress_by_name, datetime.now(UTC), more)

    with answering(settings, get, post, guarded=guarded) as url:
        yield url
