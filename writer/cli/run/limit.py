"""`headrace limit`: set the rate limit of pipelines while their driver runs."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.units import size
from writer.output.cli_options import AsJson, By, ConfigFile, Pipelines, default_author
from writer.output.tables import console, emit_whole, sentence
from writer.status import rate_limit
from writer.status.rate_limit import EffectiveLimit, Override, to_json
from writer.table.factory import main_table


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
    settings = load(config)
    value_bytes = _parse_size("--bytes-per-second", bytes_per_second)
    has_rates = records_per_second is not None or value_bytes is not None
    if off and has_rates:
        raise typer.BadParameter("it ends a limit; leave the rates out", param_hint="--off")
    names = settings.chosen(pipeline)
    before = _effective_limits(settings, names)
    after = before
    if off:
        for name in names:
            rate_limit.remove_override(main_table(name, settings).store)
        after = _effective_limits(settings, names)
    elif has_rates:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        override = Override(time, by or default_author(), reason, records_per_second, value_bytes)
        for name in names:
            rate_limit.save_override(main_table(name, settings).store, override)
        after = _effective_limits(settings, names)
    if as_json:
        emit_whole({name: {**_document(after[name]), "before": _document(before[name])} for name in names})
        return
    for name in names:
        text = f"{name}: {after[name].text}"
        if off or has_rates:
            text += f"; it was {before[name].text}"
        sentence(console(), f"{text}.")


def _parse_size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _effective_limits(config: Config, names: list[str]) -> Mapping[str, EffectiveLimit]:
    limits = {}
    for name in names:
        configured = rate_limit.configured_limit(config.pipelines[name].commit)
        limits[name] = rate_limit.effective_limit(main_table(name, config).store, configured)
    return limits


def _document(limit: EffectiveLimit) -> dict[str, Any]:
    return {
        **to_json(limit.limit),
        "override": limit.override and asdict(limit.override),
        "error": limit.error or None,
    }
