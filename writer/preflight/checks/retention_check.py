"""Checks whether the retention that is configured is in force, and what a shorter one would drop."""

from collections.abc import Iterator
from datetime import datetime

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import plural
from headrace.writer.maintenance.retention import pipeline_retentions
from headrace.writer.preflight.checks.finding import Finding, doubtful, failure, good, not_checked
from headrace.writer.storage.locations import in_bucket


def check_retention(name: str, config: Config, now: datetime, *, offline: bool) -> Iterator[Finding]:
    """Yield a finding for each table whose shorter retention waits, else one for all; none without a retention."""
    if offline and (config.catalog is not None or in_bucket(config.pipelines[name].table.location)):
        yield not_checked("retention", "--offline")
        return
    try:
        retentions = pipeline_retentions(name, config)
        waits = [wait for retention in retentions if (wait := retention.find_wait(now)) is not None]
    except (HeadraceError, OSError) as error:
        yield failure("retention", error)
        return
    for wait in waits:
        yield doubtful("retention", wait.text, "`headrace retention` shows the buckets, and takes it with --yes.")
    if retentions and not waits:
        yield good("retention", f"as configured, for {plural(len(retentions), 'table')}")
