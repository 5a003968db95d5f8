"""Live records over HTTP for the page, as `headrace preview` shows them. They may hold personal data.

They are shown only if the configuration says so (`http.expose_records`), and only with the token.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.output.tables import plain
from headrace.writer.preflight.samples.preview import newest_records
from headrace.writer.preflight.samples.preview_text import Step
from headrace.writer.web.http_server import TEXT, Answer, Guarded, has_token, json_answer

_PATH = "/records"
_STEPS: tuple[Step, ...] = ("raw", "decoded", "assigned")
_RECORDS = 10
_RECORDS_MAX = 50


def record_guard(config: Config, now: Callable[[], Config] | None = None) -> Guarded:
    """Answer `GET /records?pipeline=clicks&at=decoded&records=10` with the right token, one at a time.

    `now` returns the configuration whose pipelines are in force; without it, `config` stays it.
    """
    busy = threading.Lock()
    token = ""
    if config.http.expose_records and config.http.token is not None:
        token = config.http.token.get_secret_value()

    def respond(path: str, authorization: str) -> Answer | None:
        address = urlsplit(path)
        if address.path != _PATH:
            return None
        if not token:
            return HTTPStatus.NOT_FOUND, TEXT, b"live records are not shown; http.expose_records switches them on\n"
        if not has_token(token, authorization):
            return HTTPStatus.FORBIDDEN, TEXT, b"this needs the token of http.token\n"
        if not busy.acquire(blocking=False):
            return HTTPStatus.TOO_MANY_REQUESTS, TEXT, b"another reader looks at live records; try again\n"
        try:
            return _answer(config if now is None else now(), address.query)
        finally:
            busy.release()

    return respond


def _answer(config: Config, query: str) -> Answer:
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    name = asked.get("pipeline", "")
    step_name = asked.get("at", "decoded")
    count = asked.get("records", str(_RECORDS))
    if name not in config.pipelines:
        return HTTPStatus.NOT_FOUND, TEXT, b"there is no such pipeline here\n"
    step = next((step for step in _STEPS if step == step_name), None)
    if step is None or not count.isdecimal() or not 1 <= int(count) <= _RECORDS_MAX:
        message = f"'at' is one of {', '.join(_STEPS)}, and 'records' 1 to {_RECORDS_MAX}\n"
        return HTTPStatus.BAD_REQUEST, TEXT, message.encode()
    try:
        records = newest_records(config, name, step=step, records=int(count), now=datetime.now(UTC))
    except (HeadraceError, OSError) as error:
        return HTTPStatus.BAD_GATEWAY, TEXT, f"{error}\n".encode()
    return json_answer({"pipeline": name, "at": step, "records": [plain(record) for record in records]})
