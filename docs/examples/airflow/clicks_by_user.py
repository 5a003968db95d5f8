"""Counts the clicks of each user by hour: once headrace seals an hour, and again when late rows seal it again.

Needs Airflow 3.2 and deltalake. CLICKS_TABLE is the location of the table, CLICKS_COUNTS a directory for the counts.
"""

import csv
import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, get_current_context, task
from deltalake import DeltaTable, QueryBuilder

# What the hook has as `asset`.
CLICKS = Asset(name="clicks", uri="s3://lake/clicks")

with DAG(
    "clicks_by_user",
    schedule=PartitionedAssetTimetable(assets=CLICKS),
    # Of two versions of an hour the later one runs last.
    max_active_runs=1,
    catchup=False,
):

    @task
    def count_clicks() -> None:
        """Write the counts of the run's hour; remove them where retention took its rows."""
        hour = get_current_context()["dag_run"].partition_key
        # It becomes a part of a statement and of a path.
        datetime.strptime(hour, "%Y-%m-%dT%H")  # noqa: DTZ007 - only its form
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

    count_clicks()
