"""What a person and a machine get to see of the figures."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from headrace.bench import show
from headrace.bench.data.dataset import dataset
from headrace.bench.figures import costs
from headrace.bench.plot import draw
from headrace.bench.show import as_json
from headrace.writer.output import tables
from tests.support.bench_runs import COSTS, MACHINE, bench_runs, bench_setting


def printed(*what: object, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    for each in what:
        console.print(each)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_the_results_fit_the_terminal(width):
    text = printed(show.header(bench_setting(), MACHINE), show.results(bench_runs(), width), show.legend(), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for name in COSTS:
        assert name in text


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_number_of_the_results_is_cut(width):
    out = io.StringIO()
    tables.show(show.results(bench_runs(), width), Console(file=out, width=width, highlight=False))
    rows = out.getvalue().splitlines()[-len(COSTS) :]
    assert [row.split()[1] for row in rows] == ["227,000", "68,400", "72,800", "326,000"]
    assert {tuple(row.split()[-3:]) for row in rows} == {("3.0", "3,200", "668")}


def test_every_contender_is_compared_with_the_first():
    lines = printed(*show.comparison(bench_runs(), bench_setting()), width=120).splitlines()
    assert [line.split("against ")[1].split()[0] for line in lines] == ["plain", "repartitioned", "limit"]
    assert all(line.startswith("headrace against") and " to " in line for line in lines)
    assert [line.split(", whole ")[1] for line in lines] == ["3.13", "2.94", "0.72"]


def short_runs():
    """Runs of which plain's have two marks in the warm window."""
    return [
        replace(run, marks=run.marks[2:] if run.contender == "plain" else run.marks) for run in bench_runs(repeats=1)
    ]


def test_a_window_that_is_too_short_is_said_and_gives_no_ratio():
    lines = printed(*show.comparison(short_runs(), bench_setting(1)), width=120).splitlines()
    assert lines[0] == "headrace against plain          no ratio of the warm events of a CPU-second, whole 3.13"
    assert "times the warm events" in lines[1]
    (row,) = (row for row in printed(show.results(short_runs(), 100)).splitlines() if row.startswith("plain"))
    assert row.split()[1:4] == ["too", "short", "59,200"]
    assert show.short_window_sentences(bench_runs()) == []
    (sentence,) = show.short_window_sentences(short_runs())
    assert sentence.startswith("too short: the warm window of plain has 2 marks, and 3 are needed for a figure. Take")
    assert "plain" not in printed(show.profile(short_runs()))


def test_the_json_says_that_a_window_is_too_short():
    found = json.loads(json.dumps(as_json(short_runs(), bench_setting(1), MACHINE)))
    plain = found["contenders"]["plain"]
    assert (plain["warm_marks"], plain["warm_window_is_too_short"], plain["warm_events_per_cpu_s"]) == (2, True, None)
    assert found["warm_marks_min"] == 3
    assert found["warm_events_per_cpu_s_ratios"]["headrace / plain"] is None
    assert found["whole_events_per_cpu_s_ratios"]["headrace / plain"]["median"] == pytest.approx(3.13, abs=0.01)


def test_a_picture_is_drawn_of_windows_that_are_too_short(tmp_path):
    path = tmp_path / "bench.svg"
    draw(short_runs(), bench_setting(1), MACHINE, path)
    assert path.stat().st_size > 5_000
    draw([run for run in short_runs() if run.contender == "plain"], bench_setting(1), MACHINE, path)
    assert path.stat().st_size > 5_000


def test_a_set_in_json_is_compared_with_the_first_set_by_the_same_contender():
    setting = replace(bench_setting(), data_sets=[dataset("200B"), dataset("200B-json")])
    slower = [replace(run, contender="headrace 200B-json") for run in bench_runs() if run.contender == "plain"]
    runs = [*bench_runs(), *slower]
    lines = printed(*show.comparison(runs, setting), width=120).splitlines()
    assert len(lines) == 4
    assert lines[0].split(" times ")[0].split()[-1] == lines[3].split(" times ")[0].split()[-1] == "3.32"
    assert lines[3].startswith("200B-json against 200B  ")
    assert "times the warm CPU-seconds of an event (" in lines[3]
    text = printed(show.header(setting, MACHINE), show.results(runs, 80), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "left out" in text
    assert "plain, repartitioned, limit on sets that only headrace reads here" in " ".join(text.split())
    assert as_json(runs, setting, MACHINE)["setting"]["data"] == "200B,200B-json"


def test_busy_slots_are_said_beside_the_events_of_a_second():
    runs = [replace(run, slots=1) if run.contender == "limit" else run for run in bench_runs(1)]
    *_, limit = printed(show.results(runs, 100)).splitlines()
    assert "101% of 1" in limit
    said = as_json(runs, replace(bench_setting(), slots=4), MACHINE)
    assert said["setting"]["slots"] == 4
    contender = said["contenders"]["limit"]
    assert (contender["slots"], round(contender["warm_busy_share"]["median"], 2)) == (1, 1.01)


def test_one_repeat_has_no_spread():
    text = printed(show.results(bench_runs(1), 100), *show.comparison(bench_runs(1), bench_setting(1)))
    assert "±" not in text
    assert " to " not in text


def test_the_profile_lists_the_dearest_first_and_the_sum_last():
    lines = printed(show.profile(bench_runs())).splitlines()
    assert lines[1].split() == list(COSTS)
    assert lines[2].startswith("JVM, ended threads")
    assert lines[-1].startswith("all")


def test_another_setting_than_the_published_one_is_said():
    assert show.smaller_setting_hint(replace(bench_setting(), events=24_000_000, warm_from=0.67)) is None
    assert "--events 24M --warm-from 0.67" in (show.smaller_setting_hint(bench_setting(1)) or "")


def test_the_json_holds_setting_machine_medians_ratios_and_runs():
    found = json.loads(json.dumps(as_json(bench_runs(), bench_setting(), MACHINE)))
    assert found["setting"]["event_bytes"] == 202
    assert list(found["contenders"]) == list(COSTS)
    assert found["contenders"]["plain"]["files"]["median"] == 3200
    assert found["warm_events_per_cpu_s_ratios"]["headrace / plain"]["median"] > 1
    assert len(found["runs"]) == 12
    assert found["runs"][0]["marks"][3]["events"] == 10_000_000


def test_topics_of_few_and_many_partitions_stand_below_each_other():
    one = bench_runs(1)[0]
    marks, written = (replace(one.marks[0], events=200_000),), replace(one.written, rows=200_000)
    sparse = replace(one, events=200_000, partitions=1_000, marks=marks, written=written)
    found = [one, replace(one, repeat=2), sparse]
    given = replace(bench_setting(), partitions=[4, 1_000])
    few, many = printed(show.by_partitions(costs(found))).splitlines()[2:]
    assert few.split()[:4] == ["4", "2,500,000", "10,000,000", "headrace"]
    assert many.split()[:4] == ["1,000", "200", "200,000", "headrace"]
    text = printed(show.header(given, MACHINE), show.by_partitions(costs(found)), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "of 4, 1,000 partitions" in text
    said = json.loads(json.dumps(as_json(found, given, MACHINE)))
    assert [each["partitions"] for each in said["topics"]] == [4, 1_000]
    assert said["topics"][0]["whole_s"]["median"] == 45
    assert said["runs"][2]["partitions"] == 1_000


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_picture_is_drawn(tmp_path, repeats, suffix):
    path = tmp_path / f"bench{suffix}"
    draw(bench_runs(repeats), bench_setting(repeats), MACHINE, path)
    assert path.stat().st_size > 5_000


def test_lines_of_what_is_done_need_no_terminal():
    out = io.StringIO()
    screen = show.Screen(Console(file=out, width=100, highlight=False))
    with screen:
        screen.begin("filling the topic", 100)
        screen.show_events(50)
        screen.finish_step("filled")
        screen.show_run(replace(bench_runs(1)[0], repeat=2))
        screen.show_run(replace(bench_runs(1)[0], contender="headrace 200B-json-rest", repeat=2))
        screen.show_run(short_runs()[1])
    *lines, short = out.getvalue().splitlines()
    assert "plain, repeat 1" in short
    assert "warm window too short, rows checked" in short
    assert len(lines) == 3
    assert len({line.index("events/CPU-s") for line in lines[1:]}) == 1
    assert max(map(len, lines)) <= 80
    assert "headrace, repeat 2" in lines[1]
    assert "events/CPU-s, rows checked" in lines[1]
