"""The hook for Trino and Presto: registers a table, and adds partitions if the engine needs them.

A Delta table is registered once: from then on its log tells. A table of Parquet files is an external table of the Hive
connector: new folders become partitions, new columns are added.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from writer.clients.http import Answer, ask, host, login
from writer.config.hooks import Presto, Trino
from writer.engines import sql
from writer.engines.table_description import TableDescription
from writer.engines.types import PRESTO, TRINO
from writer.hooks.base import Delivered, HookFailed, Per, Sealed

_BUSY = (502, 503, 504)  # by the protocol: ask the same again
_PAUSE_S = 0.1
_ANSWER_WITHIN_S = 60.0  # a server holds a question open for a second or so


class StatementRefused(HookFailed):
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
        answer_document = self._asked(at, "POST", body, deadline)
        while True:
            if error := answer_document.get("error"):
                raise StatementRefused(statement, error)
            rows += answer_document.get("data") or []
            if "nextUri" not in answer_document:
                return rows
            at = self._here(answer_document["nextUri"])
            if time.monotonic() > deadline:
                ask(at, method="DELETE", headers=self._headers, timeout_s=_ANSWER_WITHIN_S)
                raise HookFailed(
                    f"{' '.join(statement.split())[:120]}: not done after {self._timeout_s:g} s; cancelled"
                )
            answer_document = self._asked(at, "GET", None, deadline)

    def _asked(self, url: str, method: str, body: bytes | None, deadline: float) -> Mapping[str, Any]:
        while True:
            answer = ask(url, method=method, body=body, headers=self._headers, timeout_s=_ANSWER_WITHIN_S)
            if answer.ok:
                answer_document: Mapping[str, Any] = answer.json()
                return answer_document
            if answer.status not in _BUSY or time.monotonic() > deadline:
                raise HookFailed(f"{host(self._url)} answered {_message(answer)}")
            time.sleep(_PAUSE_S)

    def _here(self, uri: str) -> str:
        """Return a URI at the configured server: behind a proxy it names another, which must not be told our login."""
        parts = urlsplit(uri)
        return f"{host(self._url)}{parts.path}" + (f"?{parts.query}" if parts.query else "")


def _message(answer: Answer) -> str:
    hint = {401: " (user, password or token)", 403: " (user, password or token)"}.get(answer.status, "")
    return answer.shown() + hint


class SqlHook:
    """One table of one server."""

    newest_only, at_once = True, 1
    per: Per = "table"

    def __init__(self, settings: Trino | Presto) -> None:
        self.name, self._settings, self._engine = settings.name, settings, settings.type
        self._url = settings.url.get_secret_value()
        self._dialect = TRINO if settings.type == "trino" else PRESTO
        self._table = sql.Name.of(settings.table)
        self.target = f"{host(self._url)}, table {self._table}"

    def deliver(self, sealed: Sealed, state: Mapping[str, Any]) -> Delivered:  # noqa: ARG002 - nothing is ever under way
        """Make the table known as it is now."""
        table, server = sealed.table, self._server(sealed.table)
        known = self._columns(server)
        did = []
        if not known:
            server.run(sql.create_schema(self._table))
            _run_once(server, sql.register(self._table, table, self._engine, self._settings.location))
            did.append("registered")
        if table.format == "parquet":
            did += self._grown(server, table, known) if known else []  # first: a partition keeps the columns of now
            server.run(sql.sync_partitions(self._table))
            did.append("partitions synchronised")
            self._check_types(table, known)
        if self._settings.analyze:
            server.run(sql.analyze(self._table))
            did.append("analysed")
        return Delivered(", ".join(did) or "known; its log tells the rest")

    def _server(self, table: TableDescription) -> Server:
        settings = self._settings
        headers = login(settings.user, settings.password, settings.token)
        if self._engine == "trino" and table.format == "parquet":  # else it refuses columns of microseconds
            headers["X-Trino-Session"] = f"{self._table.catalog}.timestamp_precision=MICROSECONDS"
        return Server(
            self._url, self._engine.title(), settings.user or "headrace", headers, settings.timeout.total_seconds()
        )

    def _columns(self, server: Server) -> dict[str, str]:
        """Return the columns that the server knows, with their types; none when it does not know the table."""
        rows = server.run(
            f"SELECT column_name, data_type FROM {self._table.catalog}.information_schema.columns "  # noqa: S608 - identifiers, checked
            f"WHERE table_schema = {sql.literal(self._table.schema.lower())} "
            f"AND table_name = {sql.literal(self._table.table.lower())}"
        )
        return {str(name).lower(): str(kind) for name, kind in rows}

    def _grown(self, server: Server, table: TableDescription, known: Mapping[str, str]) -> list[str]:
        new = [column for column in table.data if column.name.lower() not in known]
        for column in new:
            kind = self._dialect.type(column.type)
            try:
                _run_once(server, sql.add_column(self._table, column.name, kind, self._dialect))
            except StatementRefused as error:
                if error.code != "PERMISSION_DENIED":
                    raise
                raise HookFailed(
                    f"{error}. Let {self._settings.user or 'headrace'} add columns (hive.allow-add-column=true, where "
                    "the catalog has the legacy rules), or add it by hand"
                ) from error
        return [f"columns added: {', '.join(column.name for column in new)}"] if new else []

    def _check_types(self, table: TableDescription, known: Mapping[str, str]) -> None:
        """Raise HookFailed for a column that was widened: the Hive connector cannot change its type."""
        for column in table.data:
            kind, has = self._dialect.type(column.type), known.get(column.name.lower())
            plain = column.type in self._dialect.plain or pa.types.is_decimal(column.type)
            if plain and has is not None and has != kind:
                raise HookFailed(
                    f"column {column.name} is {kind} by now and {has} in {self._table}. DROP TABLE {self._table} (its "
                    "files stay), and the next try registers it anew"
                )


def _run_once(server: Server, statement: str) -> None:
    """Run a statement that another process may have run already, or runs now."""
    try:
        server.run(statement)
    except StatementRefused as error:
        if not ("ALREADY_EXISTS" in error.code or "already exists" in str(error)):
            raise
