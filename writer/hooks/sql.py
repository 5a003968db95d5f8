"""The hook for Trino and Presto: registers a table, and adds partitions if the engine needs them.

A Delta table is registered once: from then on its log tells. A table of Parquet files is an external table of the Hive
connector: new folders become partitions, new columns are added.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from headrace.writer.config.sections.hooks import Presto, Trino
from headrace.writer.core.http import Answer, ask, host, login
from headrace.writer.engines import sql
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.engines.types import PRESTO, TRINO
from headrace.writer.hooks.base import HookFailed, Per, Receipt, SealedVersion

# By the protocol a client repeats a request that has one of these answers.
_BUSY = (502, 503, 504)
_PAUSE_S = 0.1
# A server keeps a request open for a second or so.
_ANSWER_WITHIN_S = 60.0


class StatementRefused(HookFailed):
    """The server ran the statement, and it failed."""

    def __init__(self, statement: str, error: Mapping[str, Any]) -> None:
        """`error`: the server's own document."""
        self.code = str(error.get("errorName", ""))
        super().__init__(f"{' '.join(statement.split())[:120]}: {error.get('message', self.code)}")


class Server:
    """One Trino or Presto."""

    def __init__(self, url: str, product: str, user: str, login: Mapping[str, str], timeout_s: float) -> None:
        """`product`: Trino or Presto; `timeout_s`: how long one statement may take."""
        self._url = url
        self._timeout_s = timeout_s
        self._headers = {f"X-{product}-User": user, f"X-{product}-Source": "headrace", **login}

    def run(self, statement: str) -> list[Sequence[Any]]:
        """Run a statement to its end. Returns its rows. Raises StatementRefused, HookFailed."""
        deadline = time.monotonic() + self._timeout_s
        rows: list[Sequence[Any]] = []
        document = self._request(f"{self._url}/v1/statement", "POST", statement.encode(), deadline)
        while True:
            if error := document.get("error"):
                raise StatementRefused(statement, error)
            rows += document.get("data") or []
            if "nextUri" not in document:
                return rows
            next_url = self._at_configured_server(document["nextUri"])
            if time.monotonic() > deadline:
                ask(next_url, method="DELETE", headers=self._headers, timeout_s=_ANSWER_WITHIN_S)
                raise HookFailed(
                    f"{' '.join(statement.split())[:120]}: not done after {self._timeout_s:g} s; cancelled"
                )
            document = self._request(next_url, "GET", None, deadline)

    def _request(self, url: str, method: str, body: bytes | None, deadline: float) -> Mapping[str, Any]:
        while True:
            answer = ask(url, method=method, body=body, headers=self._headers, timeout_s=_ANSWER_WITHIN_S)
            if answer.ok:
                document: Mapping[str, Any] = answer.json()
                return document
            if answer.status not in _BUSY or time.monotonic() > deadline:
                raise HookFailed(f"{host(self._url)} answered {_message(answer)}")
            time.sleep(_PAUSE_S)

    def _at_configured_server(self, uri: str) -> str:
        """Return a URI with the configured server: behind a proxy it names another, which must not get our login."""
        parts = urlsplit(uri)
        return urlunsplit((*urlsplit(host(self._url))[:2], parts.path, parts.query, ""))


def _message(answer: Answer) -> str:
    hint = {401: " (user, password or token)", 403: " (user, password or token)"}.get(answer.status, "")
    return answer.summary() + hint


class SqlHook:
    """One table of one server."""

    newest_only = True
    at_once = 1
    per: Per = "table"

    def __init__(self, settings: Trino | Presto) -> None:
        self.name = settings.name
        self._settings = settings
        self._engine = settings.type
        self._url = settings.url.get_secret_value()
        self._dialect = TRINO if settings.type == "trino" else PRESTO
        self._table = sql.Name.of(settings.table)
        self.target = f"{host(self._url)}, table {self._table}"

    def check(self) -> bool:
        """Ask for the columns of the table, which need not be there yet."""
        self._column_types(self._server(session={}))
        return True

    def deliver(self, sealed: SealedVersion, state: Mapping[str, Any]) -> Receipt:  # noqa: ARG002 - no statement outlasts a call
        """Register the table, or bring its columns and partitions up to date."""
        table = sealed.table
        server = self._server(self._session(table))
        column_types = self._column_types(server)
        steps = []
        if not column_types:
            server.run(sql.create_schema(self._table))
            _run_once(server, sql.register(self._table, table, self._engine, self._settings.location))
            steps.append("registered")
        if table.format == "parquet":
            # A new partition keeps the columns that the table has by then, so columns come first.
            if column_types:
                steps += self._add_columns(server, table, column_types)
            server.run(sql.sync_partitions(self._table))
            steps.append("partitions synchronised")
            self._check_types(table, column_types)
        if self._settings.analyze:
            server.run(sql.analyze(self._table))
            steps.append("analysed")
        return Receipt(", ".join(steps) or "known; its log tells the rest")

    def _session(self, table: TableDescription) -> dict[str, str]:
        """Return the header with the session's settings: Trino refuses columns of microseconds that Hive lists."""
        if self._engine == "trino" and table.format == "parquet":
            return {"X-Trino-Session": f"{self._table.catalog}.timestamp_precision=MICROSECONDS"}
        return {}

    def _server(self, session: Mapping[str, str]) -> Server:
        settings = self._settings
        headers = {**login(settings.user, settings.password, settings.token), **session}
        return Server(
            self._url, self._engine.title(), settings.user or "headrace", headers, settings.timeout.total_seconds()
        )

    def _column_types(self, server: Server) -> dict[str, str]:
        """Return the types that the server has by column; none when it does not know the table."""
        rows = server.run(
            f"SELECT column_name, data_type FROM {self._table.catalog}.information_schema.columns "  # noqa: S608 - identifiers, checked
            f"WHERE table_schema = {sql.literal(self._table.schema.lower())} "
            f"AND table_name = {sql.literal(self._table.table.lower())}"
        )
        return {str(name).lower(): str(kind) for name, kind in rows}

    def _add_columns(self, server: Server, table: TableDescription, column_types: Mapping[str, str]) -> list[str]:
        """Add the columns that the server lacks. Returns what was done, in words: one item or none."""
        new = [column for column in table.data if column.name.lower() not in column_types]
        for column in new:
            column_type = self._dialect.type(column.type)
            try:
                _run_once(server, sql.add_column(self._table, column.name, column_type, self._dialect))
            except StatementRefused as error:
                if error.code != "PERMISSION_DENIED":
                    raise
                raise HookFailed(
                    f"{error}. Let {self._settings.user or 'headrace'} add columns (hive.allow-add-column=true, where "
                    "the catalog has the legacy rules), or add it by hand"
                ) from error
        if not new:
            return []
        return [f"columns added: {', '.join(column.name for column in new)}"]

    def _check_types(self, table: TableDescription, column_types: Mapping[str, str]) -> None:
        """Raise HookFailed for a column that was widened: the Hive connector cannot change its type."""
        for column in table.data:
            expected = self._dialect.type(column.type)
            actual = column_types.get(column.name.lower())
            is_plain = column.type in self._dialect.plain or pa.types.is_decimal(column.type)
            if is_plain and actual is not None and actual != expected:
                raise HookFailed(
                    f"column {column.name} is {expected} by now and {actual} in {self._table}. DROP TABLE "
                    f"{self._table} (its files stay), and the next try registers it anew"
                )


def _run_once(server: Server, statement: str) -> None:
    """Run a statement that another process may have run already, or runs now."""
    try:
        server.run(statement)
    except StatementRefused as error:
        if not ("ALREADY_EXISTS" in error.code or "already exists" in str(error)):
            raise
