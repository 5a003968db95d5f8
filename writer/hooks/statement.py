"""The statement protocol of Trino and Presto, which differ in the names of their headers alone.

A statement is POSTed, and followed from one `nextUri` to the next until there is none.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from writer.hooks.ask import Answer, ask, host
from writer.hooks.base import HookFailed

_BUSY = (502, 503, 504)  # by the protocol: ask the same again
_PAUSE_S = 0.1
_ANSWER_WITHIN_S = 60.0  # a server holds a question open for a second or so


class Refused(HookFailed):
    """The server ran the statement, and it failed."""

    def __init__(self, statement: str, error: Mapping[str, Any]) -> None:
        """Take the server's own words."""
        self.code = str(error.get("errorName", ""))
        super().__init__(f"{' '.join(statement.split())[:120]}: {error.get('message', self.code)}")


class Server:
    """One Trino or Presto."""

    def __init__(self, url: str, product: str, user: str, login: Mapping[str, str], timeout_s: float) -> None:
        """`product`: Trino or Presto; `timeout_s`: how long one statement may take."""
        self._url, self._timeout_s = url, timeout_s
        self._headers = {f"X-{product}-User": user, f"X-{product}-Source": "headrace", **login}

    def run(self, statement: str) -> list[Sequence[Any]]:
        """Run a statement to its end. Returns its rows. Raises Refused, HookFailed."""
        deadline = time.monotonic() + self._timeout_s
        rows: list[Sequence[Any]] = []
        at, body = f"{self._url}/v1/statement", statement.encode()
        said = self._asked(at, "POST", body, deadline)
        while True:
            if error := said.get("error"):
                raise Refused(statement, error)
            rows += said.get("data") or []
            if "nextUri" not in said:
                return rows
            at = self._here(said["nextUri"])
            if time.monotonic() > deadline:
                ask(at, method="DELETE", headers=self._headers, timeout_s=_ANSWER_WITHIN_S)
                raise HookFailed(
                    f"{' '.join(statement.split())[:120]}: not done after {self._timeout_s:g} s; cancelled"
                )
            said = self._asked(at, "GET", None, deadline)

    def _asked(self, url: str, method: str, body: bytes | None, deadline: float) -> Mapping[str, Any]:
        while True:
            answer = ask(url, method=method, body=body, headers=self._headers, timeout_s=_ANSWER_WITHIN_S)
            if answer.ok:
                said: Mapping[str, Any] = answer.json()
                return said
            if answer.status not in _BUSY or time.monotonic() > deadline:
                raise HookFailed(f"{host(self._url)} answered {_told(answer)}")
            time.sleep(_PAUSE_S)

    def _here(self, uri: str) -> str:
        """Return a URI at the configured server: behind a proxy it names another, which must not be told our login."""
        parts = urlsplit(uri)
        return f"{host(self._url)}{parts.path}" + (f"?{parts.query}" if parts.query else "")


def _told(answer: Answer) -> str:
    hint = {401: " (user, password or token)", 403: " (user, password or token)"}.get(answer.status, "")
    return answer.shown() + hint
