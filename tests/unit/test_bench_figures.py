"""From samples to figures."""

from dataclasses import replace

import pytest

from headrace.bench.figures import (
    NOTHING,
    BatchMark,
    BenchFailed,
    Run,
    Spread,
    Usage,
    WrittenTable,
    cold,
    costs,
    has_warm_window,
    parts,
    ratio,
    ratios,
    short_windows,
    spread,
    summary,
    warm,
    warm_marks,
    whole,
)


def run(contender: str = "headrace", repeat: int = 1, *, warm_cpu_s: float = 3, rows: int = 1000) -> Run:
    """Four batches of 250 events; the first ends after 10 s and 8 s of CPU."""
    marks = [
        BatchMark(250 * (i + 1), Usage(10 + i, 6 + i * warm_cpu_s / 3 * 0.4, 2 + i * warm_cpu_s / 3 * 0.6))
        for i in range(4)
    ]
    return Run(
        contender, repeat, 1000, 200_000, tuple(marks), Usage(14, 7.2, 3.9), 2**30, WrittenTable(4, 70_000, rows)
    )


def test_warm_is_from_the_first_mark_at_a_fifth_to_the_last():
    found = warm(run())
    assert found.events == 750
    assert found.events_per_cpu_s == pytest.approx(250)
    assert found.events_per_s == pytest.approx(250)
    assert found.megabytes_per_cpu_s == pytest.approx(0.05)
    assert found.jvm_share == pytest.approx(0.4)


def test_slots_are_busy_as_far_as_their_tree_uses_processors_while_they_could():
    # Three processor seconds in three seconds of the clock.
    assert warm(run()).busy_share == pytest.approx(0.5)
    assert warm(replace(run(), slots=1)).busy_share == pytest.approx(1)
    found = summary([run(), run(repeat=2, warm_cpu_s=6)], "headrace")
    assert (found.slots, found.warm_busy_share) == (
        2,
        Spread(pytest.approx(0.75), pytest.approx(0.5), pytest.approx(1)),
    )


def test_a_first_batch_below_a_fifth_is_not_yet_warm():
    early = BatchMark(100, Usage(9, 5, 1))
    given = run()
    found = warm(Run("headrace", 1, 1000, 200_000, (early, *given.marks), given.end, 0, given.written))
    assert found == warm(given)


def test_cold_is_the_first_batch_with_the_start():
    found = cold(run())
    assert (found.events, found.usage.cpu_s, found.usage.wall_s) == (250, 8, 10)


def test_the_whole_run_counts_what_comes_after_the_last_batch():
    assert whole(run()).events_per_cpu_s == pytest.approx(1000 / 11.1)


def test_usage_is_the_difference_of_two_readings():
    assert Usage(3, 2, 1).since(NOTHING).cpu_s == 3


def test_a_run_that_lost_rows_is_not_counted():
    with pytest.raises(BenchFailed, match="headrace read 1,000 of 1,000 events and its table holds 999 rows"):
        run(rows=999)


def test_a_run_without_marks_is_not_counted():
    with pytest.raises(BenchFailed, match="read 0 of 1,000"):
        Run("plain", 1, 1000, 1, (), NOTHING, 0, WrittenTable(1, 1, 1000))


def run_of_marks(*events: int, contender: str = "flink", warm_from: float = 0.5) -> Run:
    """A run of 1,000 events with a mark at each of these, a second and a CPU-second apart."""
    marks = tuple(BatchMark(count, Usage(i + 1, i + 1, 0)) for i, count in enumerate(events))
    end = Usage(len(events) + 1, len(events) + 1, 0)
    return Run(contender, 1, 1000, 1, marks, end, 0, WrittenTable(1, 1, 1000), warm_from=warm_from)


def test_a_window_of_three_marks_gives_a_figure():
    given = run_of_marks(100, 500, 700, 1000)
    assert [mark.events for mark in warm_marks(given)] == [500, 700, 1000]
    assert has_warm_window(given)
    assert warm(given).events_per_cpu_s == 250


@pytest.mark.parametrize(
    ("events", "marks"), [((1000,), "1 marks"), ((400, 1000), "1 marks"), ((100, 400, 600, 1000), "2 marks")]
)
def test_a_window_of_fewer_than_three_marks_gives_none(events, marks):
    given = run_of_marks(*events)
    assert not has_warm_window(given)
    with pytest.raises(BenchFailed, match=f"window of flink is too short: from 50% .* has {marks}, and 3 are needed"):
        warm(given)
    with pytest.raises(BenchFailed, match="too short"):
        parts(given)


def test_a_short_window_gives_no_warm_figure_and_no_ratio_but_those_of_the_whole_run():
    runs = [
        run_of_marks(250, 500, 750, 1000, contender="headrace"),
        run_of_marks(600, 1000, contender="flink"),
        run_of_marks(500, 800, 1000, contender="plain"),
    ]
    short = summary(runs, "flink")
    assert (short.warm_marks, short.warm_window_is_too_short, short.warm_events_per_cpu_s) == (2, True, None)
    assert short.whole_events_per_cpu_s.median == pytest.approx(1000 / 3)
    assert not summary(runs, "headrace").warm_window_is_too_short
    assert short_windows(runs) == {"flink": 2}
    assert ratios(runs) == {"flink": None, "plain": Spread(1, 1, 1)}
    of_whole = ratios(runs, whole)
    assert {name: each and each.median for name, each in of_whole.items()} == pytest.approx(
        {"flink": 0.6, "plain": 0.8}
    )
    assert ratios([runs[1], runs[0]]) == {"headrace": None}


def test_one_short_repeat_makes_the_windows_of_its_contender_short():
    runs = [run_of_marks(500, 800, 1000), replace(run_of_marks(600, 1000), repeat=2)]
    assert short_windows(runs) == {"flink": 2}


def test_the_time_of_a_topic_is_that_of_the_repeats_on_it_alone():
    runs = [replace(run(), partitions=p, end=Usage(s, s, 0)) for p, s in ((4, 10), (100, 14), (4, 12), (100, 20))]
    runs[0], runs[2] = (
        replace(one, marks=tuple(replace(mark, batch_s=s) for mark in one.marks))
        for one, s in ((runs[0], 1.0), (runs[2], 2.0))
    )
    few, many = costs(runs)
    assert (few.batches_s, many.batches_s) == (Spread(6, 4, 8), None)
    assert (few.partitions, few.whole_s, few.events_per_partition) == (4, Spread(11, 10, 12), 250)
    assert (many.partitions, many.cpu_s, many.events_per_partition) == (100, Spread(17, 14, 20), 10)


def test_runs_of_the_same_repeat_are_compared():
    runs = [
        run("headrace", 1, warm_cpu_s=1), run("limit", 1, warm_cpu_s=0.5),
        run("headrace", 2, warm_cpu_s=4), run("limit", 2, warm_cpu_s=1),
        run("headrace", 3, warm_cpu_s=3), run("limit", 3, warm_cpu_s=2.4),
    ]  # fmt: skip
    found = ratio(runs, "headrace", "limit")
    assert (found.median, found.least, found.most) == pytest.approx((0.5, 0.25, 0.8))
    assert ratios(runs) == {"limit": found}


def test_a_spread_is_the_median_and_what_lies_around_it():
    found = spread([3, 1, 2])
    assert found == Spread(2, 1, 3)
    assert found.share == 0.5


def test_a_summary_is_of_one_contender():
    found = summary([run(repeat=1), run(repeat=2, warm_cpu_s=6), run("plain", 1, warm_cpu_s=30)], "headrace")
    rates = found.warm_events_per_cpu_s
    assert (rates.median, rates.least, rates.most) == pytest.approx((187.5, 125, 250))
    assert found.files.median == 4


def test_the_parts_of_a_profile_add_up_to_the_warm_time():
    marks = (
        BatchMark(500, Usage(1, 4, 2), {"tasks": 1.0, "compile": 2.0}, {"decode": 9.0}),
        BatchMark(700, Usage(1.5, 5, 2.5), {"tasks": 1.7, "compile": 2.5}, {"decode": 0.1, "columnar": 0.2}),
        BatchMark(1000, Usage(2, 6, 3), {"tasks": 2.0, "compile": 2.5}, {"decode": 0.3, "columnar": 0.3}),
    )
    found = parts(Run("headrace", 1, 1000, 1, marks, Usage(2, 6, 3), 0, WrittenTable(1, 1, 1000)))
    assert found["JVM, tasks"] == pytest.approx(2000)
    assert found["JVM, compile"] == pytest.approx(1000)
    assert found["JVM, ended threads"] == pytest.approx(1000)
    assert found["Python, decode"] == pytest.approx(800)
    assert found["Python, outside the steps"] == pytest.approx(200)
    assert sum(found.values()) == pytest.approx(6000)
