"""One definition on every surface: rows, late rows wherever they went, dead letters, quarantined, gaps."""

import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headrace.writer.audit.audit import audit
from headrace.writer.cli.look.audit import report_audit, run_audit
from headrace.writer.cli.look.explain import run_explain
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.output.command_inputs import ChosenPipelines
from headrace.writer.output.report import json_value
from headrace.writer.output.status_screen import screen
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from headrace.writer.status.table_facts import TableFactsReader
from headrace.writer.table.log.operations.gaps import Gap, Loss
from headrace.writer.table.log.operations.seals import Closing
from headrace.writer.web.metrics_export import families
from tests.support.audits import mixed_values
from tests.support.local_driver import Driver, log
from tests.support.sample_records import GAP_FACTS

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
# Of forty offsets four each are tombstones, cut and too old; of the other 28 half came after their bucket was closed.
WHERE = {
    "reopen": {"rows": 28, "late_table": 0, "dead_letters": 4},
    "late_table": {"rows": 14, "late_table": 14, "dead_letters": 4},
    "dead_letter": {"rows": 14, "late_table": 0, "dead_letters": 18},
}


@pytest.fixture(params=list(WHERE))
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(tmp_path, policy: str) -> Driver:
    made = Driver(tmp_path, seal={"late": policy})
    made.start(1)
    made.carry([log(mixed_values(0, 20))], {0: 20})
    made.table.append(Closing("c", NOON + timedelta(days=1), {"reason": "command"}), made.table.snapshot())
    made.carry([log(mixed_values(20, 40))], {0: 40})
    return made


def drawn(show) -> str:
    out = StringIO()
    show(Console(file=out, width=160, highlight=False))
    return out.getvalue()


def test_late_rows_and_dead_letters_are_the_same_everywhere(driver: Driver, policy: str) -> None:
    expected = {"read": 40, **WHERE[policy], "quarantined": 4, "tombstones": 4, "filtered": 0}
    progress = Progress("clicks", now=lambda: NOON, seconds=lambda: 0.0)
    progress.record_start(epoch=1, run=1, frontier={}, limits={}, buckets=[], recent=[])
    for number, facts in enumerate(reversed(driver.table.recent_commits(9))):
        progress.begin_batch(number, "look")
        progress.record_commit(number, facts, {}, [])

    reader = TableFactsReader("clicks", driver.config)
    snapshot = reader.snapshot()
    progress.set(gaps=reader.gaps(snapshot), contents=reader.contents(snapshot, NOON))

    status = document([progress.view()], NOON)["pipelines"]["clicks"]
    assert (status["totals"]["records"], status["totals"]["late_rows"]) == (expected, 14)
    assert status["last_commit"]["late_rows"] == 14
    in_table = expected["dead_letters"] + 4
    assert (status["table"]["rows"], status["table"]["dead_letters"]) == (expected["rows"], in_table)
    text = drawn(lambda out: out.print(screen({"pipelines": {"clicks": status}})))
    assert re.search(r"; 14 late rows *\n", text)
    assert re.search(rf"^  table +{expected['rows']} rows in ", text, re.MULTILINE)
    by_rule = " (14 by a rule)" if policy == "dead_letter" else ""
    since_start = f"{expected['dead_letters']}{by_rule}, and 4 quarantined since the start: "
    assert f"dead letters  {in_table} records in their table; {since_start}" in text

    samples = [sample for family in families({"clicks": progress}, NOON) for sample in family.samples]
    metrics = {(s.name, s.labels.get("outcome")): s.value for s in samples}
    assert {name: metrics["headrace_records_total", name] for name in expected if name != "read"} == {
        name: count for name, count in expected.items() if name != "read"
    }
    assert metrics["headrace_late_rows_total", None] == 14
    assert metrics["headrace_dead_letter_table_rows_total", None] == expected["dead_letters"] + 4
    ruled = 14 if policy == "dead_letter" else 0
    assert metrics["headrace_dead_letters_by_rule_total", None] == status["totals"]["dead_letters_by_rule"] == ruled
    assert (metrics["headrace_table_rows", None], metrics["headrace_dead_letter_rows", None]) == (
        expected["rows"],
        in_table,
    )

    found = json_value(report_audit(audit(driver.config, "clicks", since=None, deep=True), deep=True))
    assert found["rows_left"] == status["table"]["rows"]
    assert (found["adds_up"], found["records"]) == (True, expected)
    assert expected.items() <= found["topic_partitions"][0].items()


def test_a_text_for_a_person_says_which_late_rows_and_which_dead_letters(driver: Driver, policy: str) -> None:
    text = drawn(run_explain(ChosenPipelines(["clicks"], driver.config)).render)
    said = dict(line.rsplit(None, 2)[:2] for line in text.splitlines() if line.endswith("%"))
    assert said["late rows, wherever they went"] == "14"
    assert said["late table"] == ("14" if policy == "late_table" else "0")
    text = drawn(run_audit(ChosenPipelines(["clicks"], driver.config)).render)
    assert ("late table" in text.splitlines()[2]) is (policy == "late_table")
    terms = " + 14 rows of the late table" if policy == "late_table" else ""
    dead_letters = WHERE[policy]["dead_letters"]
    assert f" rows{terms} + 4 tombstones + {dead_letters} dead letters + 4 quarantined. It adds up." in text


def test_an_open_gap_is_the_same_everywhere_and_one_that_is_given_up_too(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start(1)
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    gap = Gap("g-1", driver.epoch, [OffsetRange(TopicPartition("clicks", 1, 0), 20, 35)], "retention", GAP_FACTS)
    entry = driver.table.append(gap, driver.table.snapshot())

    def audited() -> tuple[dict[str, int], int]:
        document = json_value(report_audit(audit(driver.config, "clicks", since=None, deep=True), deep=True))
        assert document["adds_up"]
        return document["gaps"], document["offsets_in_gaps"]

    def told() -> dict[str, tuple[int, int]]:
        reader = TableFactsReader("clicks", driver.config)
        progress = Progress("clicks", now=lambda: NOON)
        progress.set(gaps=reader.gaps(reader.snapshot()))
        status = document([progress.view()], NOON)["pipelines"]["clicks"]["gaps"]
        samples = [sample for family in families({"clicks": progress}, NOON) for sample in family.samples]
        metrics = {sample.name: sample.value for sample in samples}
        return {
            "status": (status["count"], status["offsets"]),
            "metrics": (metrics["headrace_gaps_open"], metrics["headrace_gap_offsets_open"]),
            "over": (metrics["headrace_gap_offsets_closed_total"], 0),
        }

    assert told() == {"status": (1, 15), "metrics": (1, 15), "over": (0, 0)}
    assert audited() == ({"open": 1, "done": 0, "lost": 0, "rewound": 0}, 15)
    text = drawn(run_explain(ChosenPipelines(["clicks"], driver.config), version=entry).render)
    assert "\n15 offsets gave no record because " in text
    loss = Loss("x", "g-1", 0, 15, {"by": "bob", "reason": "gone", "at": NOON.isoformat()})
    driver.table.append(loss, driver.table.snapshot())
    assert told() == {"status": (0, 0), "metrics": (0, 0), "over": (15, 0)}
    assert audited() == ({"open": 0, "done": 0, "lost": 1, "rewound": 0}, 15)
