"""`headrace limit`: set the rate limit of pipelines while their driver runs."""

import getpass
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.units import size
from writer.output import tables
from writer.output.cli_options import AsJson, By, ConfigFile, Pipelines
from writer.output.tables import console
from writer.status import rate_limit
from writer.status.rate_limit import EffectiveLimit, Override, to_json
from writer.table.factory import main_table


def _size(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _in_force(config: Config, name: str) -> EffectiveLimit:
    configured = rate_limit.configured(config.pipelines[name].commit)
    return rate_limit.standing(main_table(name, config).store, configured)


def _document(found: EffectiveLimit) -> dict[str, Any]:
    override = None if found.override is None else asdict(found.override)
    return {**to_json(found.limit), "override": override, "error": found.error or None}


def limit(
    config: ConfigFile,
    pipeline: Pipelines = None,
    records_per_second: Annotated[
        int | None, typer.Option("--records-per-second", min=1, help="At most this many records a second, over time.")
    ] = None,
    bytes_per_second: Annotated[
        str | None, typer.Option("--bytes-per-second", help="At most so much of values a second, such as '10 MB'.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="End it: the limits of the configuration count again.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown while it stands.")] = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Show the rate limit of the pipelines, or set another one, which a running driver keeps to within seconds.

    While it stands, commit.max_records_per_second and commit.max_bytes_per_second do not count. It stays over restarts,
    until --off. A driver that is at its limit commits less than comes: its lag grows, and Kafka's retention goes on.

    Exit codes: 0 shown or set, 1 the storage does not answer, 2 configuration.
    """
    settings, now = load(config), datetime.now(UTC)
    value_bytes = _size("--bytes-per-second", bytes_per_second)
    wanted = records_per_second is not None or value_bytes is not None
    if off and wanted:
        raise typer.BadParameter("it ends a limit; leave the rates out", param_hint="--off")
    names = settings.chosen(pipeline)
    before = {name: _in_force(settings, name) for name in names}
    for name in names if off or wanted else ():
        store = main_table(name, settings).store
        if off:
            rate_limit.end(store)
        else:
            author = by or f"{getpass.getuser()}@{socket.gethostname()}"
            at = now.isoformat(timespec="seconds")
            rate_limit.put(store, Override(at, author, reason, records_per_second, value_bytes))
    after = {name: _in_force(settings, name) for name in names}
    if as_json:
        documents = {name: _document(found) for name, found in after.items()}
        tables.emit_whole({name: {**one, "before": _document(before[name])} for name, one in documents.items()})
        return
    for name, found in after.items():
        was = f"; it was {before[name].words}" if off or wanted else ""
        tables.sentence(console(), f"{name}: {found.words}{was}.")
