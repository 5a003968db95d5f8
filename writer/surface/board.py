"""What a process beside the driver tells over HTTP: its metrics, its status, and whether it is well."""

import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from prometheus_client.metrics_core import Metric as Family

from writer.surface.http import Answer, Get
from writer.surface.scrape import encoded

_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"


def board(
    verb: str, *, families: Callable[[], Iterable[Family]], status: Callable[[], dict[str, Any]],
    unwell: Callable[[], str],
) -> Get:  # fmt: skip
    """Answer a GET. `unwell`: why whoever looks after this process should act; empty while it is well."""

    def get(path: str, accept: str) -> Answer:
        match path.split("?", 1)[0]:
            case "/metrics":
                body, content_type = encoded(families(), accept)
                return HTTPStatus.OK, content_type, body
            case "/status":
                return HTTPStatus.OK, _JSON, (json.dumps(status()) + "\n").encode()
            case "/healthz":
                why = unwell()
                code = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
                return code, _TEXT, f"{why or 'ok'}\n".encode()
            case "/":
                return HTTPStatus.OK, _TEXT, f"{verb}\n\n/metrics\n/healthz\n/status\n".encode()
        return HTTPStatus.NOT_FOUND, _TEXT, b"not here; see /\n"

    return get
