"""Trino and Presto are told where the table is, and, where they go by partitions, that it has new ones.

A Delta table is registered once: from then on its log tells. A table of Parquet files is an external table of the Hive
connector: new folders become partitions, new columns are added.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from writer.engines import sql
from writer.engines.described import Described
from writer.engines.types import PRESTO, TRINO
from writer.hooks.ask import host, login
from writer.hooks.base import Done, HookFailed, Per, Sealed
from writer.hooks.settings import Presto, Trino
from writer.hooks.statement import Refused, Server

_PRODUCT = {"trino": "Trino", "presto": "Presto"}


class SqlHook:
    """One table of one server."""

    newest_only, at_once = True, 1
    per: Per = "table"

    def __init__(self, settings: Trino | Presto) -> None:
        self.name, self._settings, self._engine = settings.name, settings, settings.type
        self._url = settings.url.get_secret_value()
        self._dialect = TRINO if settings.type == "trino" else PRESTO
        self._table = sql.Name.of(settings.table)

    @property
    def target(self) -> str:
        """Where it delivers."""
        return f"{host(self._url)}, table {self._table}"

    def deliver(self, sealed: Sealed, state: Mapping[str, Any]) -> Done:  # noqa: ARG002 - nothing is ever under way
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
        return Done(", ".join(did) or "known; its log tells the rest")

    def _server(self, table: Described) -> Server:
        settings = self._settings
        headers = login(settings.user, settings.password, settings.token)
        if self._engine == "trino" and table.format == "parquet":  # else it refuses columns of microseconds
            headers["X-Trino-Session"] = f"{self._table.catalog}.timestamp_precision=MICROSECONDS"
        return Server(
            self._url, _PRODUCT[self._engine], settings.user or "headrace", headers, settings.timeout.total_seconds()
        )

    def _columns(self, server: Server) -> dict[str, str]:
        """Return the columns that the server knows, with their types; none when it does not know the table."""
        rows = server.run(
            f"SELECT column_name, data_type FROM {self._table.catalog}.information_schema.columns "  # noqa: S608 - identifiers, checked
            f"WHERE table_schema = {sql.literal(self._table.schema.lower())} "
            f"AND table_name = {sql.literal(self._table.table.lower())}"
        )
        return {str(name).lower(): str(kind) for name, kind in rows}

    def _grown(self, server: Server, table: Described, known: Mapping[str, str]) -> list[str]:
        new = [column for column in table.data if column.name.lower() not in known]
        for column in new:
            kind = self._dialect.type(column.type)
            try:
                _run_once(server, sql.add_column(self._table, column.name, kind, self._dialect))
            except Refused as error:
                if error.code != "PERMISSION_DENIED":
                    raise
                raise HookFailed(
                    f"{error}. Let {self._settings.user or 'headrace'} add columns (hive.allow-add-column=true, where "
                    "the catalog has the legacy rules), or add it by hand"
                ) from error
        return [f"columns added: {', '.join(column.name for column in new)}"] if new else []

    def _check_types(self, table: Described, known: Mapping[str, str]) -> None:
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
    """Run a statement that somebody may have run already, perhaps this moment."""
    try:
        server.run(statement)
    except Refused as error:
        if not ("ALREADY_EXISTS" in error.code or "already exists" in str(error)):
            raise
