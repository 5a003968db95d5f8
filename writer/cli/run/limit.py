"""`headrace limit`: set the rate limit of pipelines while their driver runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.core.text import iso
from headrace.writer.core.units import size
from headrace.writer.output.cli_options import By, default_author
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import ChosenPipelines, PipelineNames
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import sentence
from headrace.writer.status import rate_limit
from headrace.writer.status.rate_limit import EffectiveLimit, Override
from headrace.writer.table.factory import main_table


@dataclass(frozen=True)
class PipelineLimit:
    """The limit of a pipeline that counts now, and the one before this call."""

    limit: EffectiveLimit
    before: EffectiveLimit


@dataclass(frozen=True)
class LimitReport(Report):
    """The rate limits of pipelines, by name."""

    pipelines: Mapping[str, PipelineLimit]
    # Whether this call set or ended them.
    is_set: bool = field(metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Say the limit of each pipeline; where it was set, also the one before."""
        for name, pipeline in self.pipelines.items():
            text = f"{name}: {pipeline.limit.text}"
            if self.is_set:
                text += f"; it was {pipeline.before.text}"
            sentence(out, f"{text}.")


@command(exits={0: "shown or set", 1: "the storage does not answer", 2: "configuration"})
def limit(
    pipelines: PipelineNames,
    records_per_second: Annotated[
        int | None, typer.Option("--records-per-second", min=1, help="At most this many records a second, over time.")
    ] = None,
    bytes_per_second: Annotated[
        str | None, typer.Option("--bytes-per-second", help="At most so much of values a second, such as '10 MB'.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="End it: the limits of the configuration count again.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown while it stands.")] = "",
    by: By = None,
) -> LimitReport:
    """Show the rate limit of the pipelines, or set another one, which a running driver keeps to within seconds.

    While it stands, commit.max_records_per_second and commit.max_bytes_per_second do not count. It stays over restarts,
    until --off. A driver that is at its limit commits less than comes: its lag grows, and Kafka's retention goes on.
    """
    value_bytes = _parse_size("--bytes-per-second", bytes_per_second)
    has_rates = records_per_second is not None or value_bytes is not None
    if off and has_rates:
        raise typer.BadParameter("it ends a limit; leave the rates out", param_hint="--off")
    before = _effective_limits(pipelines)
    stores = [main_table(name, pipelines.config).store for name in pipelines.names]
    if off:
        for store in stores:
            rate_limit.remove_override(store)
    elif has_rates:
        override = Override(iso(datetime.now(UTC)), by or default_author(), reason, records_per_second, value_bytes)
        for store in stores:
            rate_limit.save_override(store, override)
    is_set = off or has_rates
    after = _effective_limits(pipelines) if is_set else before
    limits = {name: PipelineLimit(after[name], before[name]) for name in pipelines.names}
    return LimitReport(limits, is_set=is_set)


def _parse_size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _effective_limits(pipelines: ChosenPipelines) -> Mapping[str, EffectiveLimit]:
    limits: dict[str, EffectiveLimit] = {}
    for name in pipelines.names:
        configured = rate_limit.configured_limit(pipelines.config.pipelines[name].commit)
        limits[name] = rate_limit.effective_limit(main_table(name, pipelines.config).store, configured)
    return limits
