"""Checks of `validate` on the data of time zones: whether this machine labels buckets as the table's rows were."""

from collections.abc import Iterator
from datetime import datetime

from bucketers.zone_data import find_zone_data
from writer.config.pipeline import Pipeline, zones_of
from writer.core.errors import HeadraceError
from writer.preflight.finding import Finding, doubtful, good
from writer.table.log.zone_records import find_zone_changes
from writer.table.table import PipelineTable


def zone_data(pipeline: Pipeline, table: PipelineTable, now: datetime) -> Iterator[Finding]:
    """Compare the zones of buckets and clocks with those of the table's log. Says nothing where all is UTC."""
    data = [find_zone_data(zone) for zone in zones_of(pipeline)]
    try:
        recorded = table.snapshot().zone_data if data and table.exists() else {}
    except HeadraceError:
        # The check of the table says it.
        return
    changes = find_zone_changes(recorded, data, now)
    if changes:
        yield doubtful(
            "zone_data",
            "; ".join(change.phrase for change in changes),
            "A start goes by the data of this machine and logs the change. Rows of those spans that come later have "
            "other labels than those before (docs/BUCKETS.md).",
        )
    elif data:
        shown = ", ".join(f"{zone_data.zone} ({zone_data.version or 'unknown'})" for zone_data in data)
        yield good("zone_data", f"{shown}: {'as the table has it' if recorded else 'the table has none yet'}")
