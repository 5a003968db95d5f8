"""`headrace status` of a driver's executors: registered, requested, recommended, and the autoscaler's last decision."""

from datetime import UTC, datetime

import pytest

from headrace.writer.output.status_screen import executor_lines, line
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from tests.support.executor_status import EXECUTORS

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
WAIT = {
    "at": "2026-11-20T12:00:00+00:00", "decision": "wait",
    "reason": "2 executors stay until 12:01:00, then 5: …", "from": 2, "to": 2, "recommended": 5,
}  # fmt: skip
UP = {**WAIT, "decision": "up", "reason": "2 executors become 5, at once.", "to": 5, "recommended": None}


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        ({}, ["executors     2 registered; no autoscaler asks for more or fewer"]),
        ({"refused": "spark.master is local[2]: …", "master": "local[2]"},
         ["executors     none, tasks run in the driver (local[2])"]),
        ({"refused": "spark.dynamicAllocation.enabled is true: …"},
         ["executors     spark.dynamicAllocation.enabled is true: …"]),
        ({"age_seconds": None}, ["executors     Spark is starting"]),
        ({"requested": 2, "decisions": []}, ["executors     2 registered; 2 requested"]),
        ({"requested": 2, "asked_seconds": 14.0, "decisions": [WAIT]},
         ["executors     2 registered; 2 requested, 5 recommended",
          "autoscaler    wait, at 2026-11-20 12:00:00 UTC: 2 executors stay until 12:01:00, then 5: …"]),
        ({"requested": 5, "asked_seconds": 200.0, "short_seconds": 75.0, "decisions": [UP]},
         ["executors     2 registered; 5 requested, and none came for 1 min 15 s",
          "autoscaler    up 2 → 5, at 2026-11-20 12:00:00 UTC, silent for 3 min 20 s: 2 executors become 5, at once."]),
        ({"requested": 2, "asked_seconds": 1.0, "draining": [{"id": "7", "seconds": 3.0}],
          "decisions": [{**UP, "decision": "", "reason": "", "from": 3, "to": 2}]},
         ["executors     2 registered, 1 more finishes its tasks and goes; 2 requested",
          "autoscaler    requested 3 → 2, at 2026-11-20 12:00:00 UTC"]),
    ],
)  # fmt: skip
def test_executors_are_registered_requested_and_recommended_with_the_last_verdict_and_its_reason(seen, lines):
    assert [f"{label:<14}{text.plain}" for label, text in executor_lines({**EXECUTORS, **seen})] == lines


def test_a_pipe_that_watches_gets_the_number_of_executors():
    pipeline = document([Progress("clicks", now=lambda: NOON, seconds=lambda: 0.0).view()], NOON)["pipelines"]["clicks"]
    pipeline = {**pipeline, "executors": {**EXECUTORS, "requested": 2, "decisions": [WAIT]}}
    assert line("clicks", pipeline, "now").endswith(
        " executors_recommended=5 executors_requested=2 executors_registered=2 executors_draining=0"
    )
    assert "executors" not in line("clicks", {**pipeline, "executors": EXECUTORS}, "now"), "there is no autoscaler"
