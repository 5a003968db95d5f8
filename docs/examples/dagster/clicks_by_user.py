"""Counts the clicks of each user by hour: once headrace seals an hour, and again when late rows seal it again.

Needs Dagster 1.13 and deltalake. CLICKS_TABLE is the location of the table, CLICKS_COUNTS a directory for the counts.
"""

import csv
import os
from pathlib import Path

import dagster as dg
from deltalake import DeltaTable, QueryBuilder

# Partitions are written as headrace names hours.
HOURS = dg.HourlyPartitionsDefinition(start_date="2026-11-20T00", fmt="%Y-%m-%dT%H")
# What the hook has as `asset`: `lake/clicks`.
CLICKS = dg.AssetSpec(["lake", "clicks"], partitions_def=HOURS)
# Each hour that changed, and not only the newest one.
WHEN_CHANGED = dg.AutomationCondition.eager().without(dg.AutomationCondition.in_latest_time_window())


@dg.asset(deps=[CLICKS], partitions_def=HOURS, automation_condition=WHEN_CHANGED)
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


defs = dg.Definitions(
    assets=[CLICKS, clicks_by_user],
    asset_checks=[headrace_audit],
    sensors=[
        dg.AutomationConditionSensorDefinition(
            "hours_that_changed", target="*", default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=10
        )
    ],
)
