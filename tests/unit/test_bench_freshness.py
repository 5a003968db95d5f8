"""The figures of how old events are when a query sees them, from made-up queries."""

import io
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from rich.console import Console

from headrace.bench.engines.statement import QueryFailed
from headrace.bench.features.freshness import (
    Freshness,
    Frontier,
    SentEvents,
    Watch,
    main,
    percentile,
    results_table,
    send_seconds,
)
from headrace.bench.figures import BenchFailed
from headrace.writer.output import tables


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("share", "value"), [(0.95, 95), (0.5, 50), (0.01, 1), (1, 100)])
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(share, value):
    assert percentile(list(range(1, 101)), share) == value
    assert percentile([7], share) == 7


@pytest.mark.parametrize(("delay", "seconds"), [(5, 60), (15, 60), (25, 75), (45, 90), (60, 120), (600, 1200)])
def test_events_are_sent_for_whole_delays_and_a_minute_at_least(delay, seconds):
    assert send_seconds(timedelta(seconds=delay)) == timedelta(seconds=seconds)


def test_a_query_sees_events_up_to_the_newest_offset_of_each_partition():
    events = SentEvents()
    for partition, offset in [(0, 7), (0, 8), (1, 3), (2, 1)]:
        events.add(partition, offset, 10.0 + offset)
    assert events.up_to({0: 7, 1: 5}) == {(0, 7): 17.0, (1, 3): 13.0}
    assert events.up_to({}) == {}
    assert len(events) == 4


def test_the_age_of_an_event_is_that_at_the_first_answer_that_has_it():
    events = SentEvents()
    began = time.monotonic()
    events.add(0, 0, began - 5)
    events.add(0, 1, began - 3)
    frontiers: list[Frontier] = [{}, {0: 0}]

    def ask() -> Frontier:
        return frontiers.pop(0) if frontiers else {0: 0}

    watch = Watch("duckdb", ask, events)
    watch.start()
    until(lambda: watch.count() == 1)
    time.sleep(0.3)
    frontiers.append({0: 1})
    until(lambda: watch.count() == 2)
    watch.stop()
    elapsed = time.monotonic() - began
    result = watch.result(timedelta(seconds=5), 3)
    assert (result.engine, result.events, result.commits, result.max_delay_s) == ("duckdb", 2, 3, 5)
    # The second event is younger, and was seen later.
    assert 3.3 < result.median_s < 5 + elapsed
    assert 5 < result.max_s < 5 + elapsed
    assert result.median_s < result.p95_s == result.max_s
    assert 0 <= result.query_s < 1


def test_an_engine_that_fails_ends_the_measurement():
    def ask() -> Frontier:
        raise QueryFailed("Trino: no such table")

    watch = Watch("trino", ask, SentEvents())
    watch.start()
    with pytest.raises(BenchFailed, match="trino failed: Trino: no such table"):
        until(lambda: watch.count() > 0)
    watch.stop()


def test_the_table_has_a_row_for_each_delay_and_engine():
    out = io.StringIO()
    results = [
        Freshness(5, "duckdb", 240, 12, 3.04, 5.62, 6.1, 0.031),
        Freshness(60, "trino", 480, 2, 31.0, 58.9, 62.2, 0.4),
    ]
    tables.show(results_table(results), Console(file=out, width=80, highlight=False))
    rows = [line.split() for line in out.getvalue().splitlines()[-2:]]
    assert rows == [
        ["5", "s", "duckdb", "3.0", "5.6", "6.1", "0.03", "240", "12"],
        ["60", "s", "trino", "31.0", "58.9", "62.2", "0.40", "480", "2"],
    ]


@pytest.mark.parametrize("arguments", [["--engines", "duckdb,presto"], ["--engines", "trino,trino"], ["--delays", "5"]])
def test_options_that_cannot_be_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert arguments[1] in capsys.readouterr().err
