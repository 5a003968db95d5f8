"""Counts the clicks of each user by hour: once headrace seals an hour, and again when late rows seal it again.

Needs Dagster 1.13 and deltalake. CLICKS_TABLE is the location of the table, CLICKS_COUNTS a directory for the counts.
"""

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from deltalake import DeltaTable, QueryBuilder

# Partitions are written as headrace names hours.
HOURS = dg.HourlyPartitionsDefinition(start_date="2026-11-20T00", fmt="%Y-%m-%dT%H")
# What the hook has as `asset`: `lake/clicks`.
CLICKS = dg.AssetSpec(["lake", "clicks"], partitions_def=HOURS)
# Changes that the sensor takes at once.
CHANGES_MAX = 1_000


@dg.asset(deps=[CLICKS], partitions_def=HOURS)
def clicks_by_user(context: dg.AssetExecutionContext) -> None:
    """Write the counts of the run's hour; remove them where retention took its rows."""
    hour = context.partition_key
    statement = f"SELECT user, count(*) AS clicks FROM clicks WHERE hour = '{hour}' GROUP BY user ORDER BY user"  # noqa: S608
    clicks = DeltaTable(os.environ["CLICKS_TABLE"])
    counts = QueryBuilder().register("clicks", clicks).execute(statement).read_all()
    file = Path(os.environ["CLICKS_COUNTS"], f"{hour}.csv")
    if not counts.num_rows:
        file.unlink(missing_ok=True)
        return
    new_file = file.with_suffix(".new")
    with new_file.open("w", newline="") as out:
        csv.writer(out).writerows(zip(counts["user"].to_pylist(), counts["clicks"].to_pylist(), strict=True))
    new_file.rename(file)


@dg.asset_check(asset=CLICKS.key)
def headrace_audit() -> dg.AssetCheckResult:
    """Show what `headrace audit --report` found last. A run of the check itself proves nothing."""
    raise dg.Failure("run `headrace audit pipelines.yaml --report`, which reports this check")


@dg.sensor(target=[clicks_by_user], default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=10)
def hours_that_changed(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest]:
    """Run each hour that was sealed, sealed again or retired since the last look, also while a run of it goes on."""
    unseen = dg.AssetRecordsFilter(asset_key=CLICKS.key, after_storage_id=int(context.cursor or 0))
    records = context.instance.fetch_materializations(unseen, limit=CHANGES_MAX, ascending=True).records
    newest_ids = {record.partition_key: record.storage_id for record in records}
    for hour, storage_id in newest_ids.items():
        yield dg.RunRequest(run_key=f"{hour} {storage_id}", partition_key=hour)
    if records:
        context.update_cursor(str(records[-1].storage_id))


defs = dg.Definitions(
    assets=[CLICKS, clicks_by_user],
    asset_checks=[headrace_audit],
    sensors=[hours_that_changed],
)
