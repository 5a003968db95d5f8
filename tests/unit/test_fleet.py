"""Many pipelines, many tables, many releases on one screen: the worst first, and nothing beyond 80 columns."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from headrace.writer.cli.look.status import StatusReport, StatusView, watch_status
from headrace.writer.cli.main import app
from headrace.writer.config.sections.connections import Http
from headrace.writer.output import fleet_screen, fleet_tables
from headrace.writer.output.health import Health, health
from headrace.writer.output.report import Screen
from headrace.writer.output.tables import show
from headrace.writer.status.collection import collect_releases, exit_code
from headrace.writer.status.progress import PipelineProgress
from headrace.writer.web.endpoints import serving
from tests.support.fleet_status import late_target, pipeline, sixty_pipelines


def printed(what: RenderableType, width: int) -> str:
    out = StringIO()
    show(what, Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize(
    ("changes", "level", "reason"),
    [
        ({}, "ok", ""),
        ({"state": "failed", "error": "the disk is full"}, "critical", "failed: the disk is full"),
        ({"state": "unknown"}, "warning", "no driver runs it"),
        ({"pause": {"at": "x"}}, "warning", "paused"),
        ({"lag": {"source_age_seconds": 300.0}}, "warning", "Kafka has not answered for 5 min"),
        ({"state": "stopped", "lag": {"source_age_seconds": 300.0}}, "warning", "no driver runs it"),
        ({"lag": {"headroom_seconds": 3_600.0}}, "critical", "retention takes the oldest in 1 h"),
        ({"lag": {"headroom_seconds": -1.0}}, "critical", "retention is over: records are being lost"),
        ({"lag": {"headroom_seconds": 50_000.0}}, "warning", "retention takes the oldest in 13 h 53 min"),
        ({"lag": {"seconds": 1_261.0}}, "warning", "the oldest record waits 21 min 1 s"),
        ({"lag": {"seconds": 1_259.0}}, "ok", ""),
        ({"targets": [late_target("users", 60.0)]}, "warning", "1 table behind, users for 1 min"),
        (
            {"targets": [late_target("users", 960.0), late_target("orders", 9.0)]},
            "critical",
            "2 tables behind, users for 16 min",
        ),
        ({"targets": [late_target("users", None)]}, "ok", ""),
        ({"gaps": {"count": 2, "offsets": 9, "last": None}}, "warning", "2 open gaps"),
        ({"hooks": {"mail": {"error": "refused"}}}, "warning", "hook mail fails"),
    ],
)  # fmt: skip
def test_health_is_the_worst_of_what_is_wrong(changes: dict[str, Any], level: str, reason: str) -> None:
    assert health(pipeline(**changes)) == Health(level, (reason,) if reason else ())  # type: ignore[arg-type]


@pytest.mark.parametrize(("by_rule", "reasons"), [(30, ()), (25, ("5.0% dead letters",))])
def test_dead_letters_by_a_rule_are_no_reason(by_rule: int, reasons: tuple[str, ...]) -> None:
    totals = pipeline()["totals"]
    records = {**totals["records"], "read": 100, "dead_letters": 28, "quarantined": 2}
    assert health(pipeline(totals={**totals, "records": records, "dead_letters_by_rule": by_rule})).reasons == reasons


def test_the_worst_reason_comes_first_and_the_status_document_has_it() -> None:
    found = health(pipeline(pause={"at": "x"}, state="failed", error="torn"))
    assert found == Health("critical", ("failed: torn", "paused"))
    assert pipeline()["health"] == {"level": "ok", "reasons": ()}


@pytest.mark.parametrize("width", [80, 120])
def test_sixty_pipelines_are_a_line_each_and_the_worst_come_first(width: int) -> None:
    shown = printed(fleet_screen.fleet(fleet_screen.rows({"": sixty_pipelines()})), width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("60 pipelines: 58 running, 1 failed, 1 paused; 500 tables of routes; 2 critical")
    order = [shown.index(name) for name in ("failing", "mixed", "paused ", "orders-56", "orders-00")]
    assert order[2:] == sorted(order[2:])
    assert max(order[:2]) < order[2]
    assert "and 4 tables more; --tables lists them" in shown
    assert len(lines) < 85


def test_pipelines_are_searched_and_sorted() -> None:
    def names(search: str = "", sort: fleet_screen.Sort = "worst") -> list[str]:
        return [row.name for row in fleet_screen.rows({"": sixty_pipelines()}, search, sort)]

    assert names("PAUSE") == ["paused"]
    assert names("event499") == ["mixed"], "by a table of its route"
    assert names("orders-0")[:2] == ["orders-09", "orders-08"]
    assert names(sort="name")[:2] == ["failing", "mixed"]
    assert names(sort="lag")[0] == "orders-56"


def test_tables_are_listed_those_behind_first() -> None:
    shown = printed(fleet_tables.tables(fleet_screen.rows({"": sixty_pipelines()}), "event"), 120).splitlines()
    assert len([line for line in shown if line.startswith("mixed")]) == 500
    assert [line.split()[1] for line in shown if line.startswith("mixed")][:10] == [
        *(f"com.shop.Event{n}" for n in range(9)), "com.shop.Event499",
    ]  # fmt: skip
    assert max(map(len, shown)) <= 120


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("com.shop.Click", "com.shop"), ("Click", "Click"), ("orders-07", "orders"), ("eu_orders-07", "eu_orders"),
        ("com.shop.Click_v2", "com.shop"), ("", ""), ("com.", "com"),
    ],
)  # fmt: skip
def test_a_group_is_what_stands_before_the_last_separator(name: str, group: str) -> None:
    assert fleet_screen.group_of(name) == group


@pytest.mark.parametrize("width", [80, 120])
def test_sixty_pipelines_are_a_few_groups_with_sums_and_the_worst_first(width: int) -> None:
    found = sixty_pipelines()
    found["pipelines"]["orders-03"] = pipeline(state="failed", error="torn", lag={"offsets": 5_000, "seconds": 900.0})
    shown = printed(screen(group=True)(found), width)
    assert max(map(len, shown.splitlines())) <= width
    lines = [line.split() for line in shown.splitlines()]
    heads = [line for line in lines if line[:1] in (["failing"], ["mixed"], ["paused"], ["orders"])]
    assert [line[0] for line in heads] == ["orders", "failing", "mixed", "paused"]
    offsets = sum(n * 1_000 for n in range(57)) - 3_000 + 5_000
    assert f"57 {offsets:,} 15 min" in " ".join(shown.split())
    assert width == 80 or "1 critical; orders-03: failed: torn" in shown
    assert len(printed(screen(group=True, search="orders-1", sort="name")(found), width).splitlines()) == 4, "one group"


@pytest.mark.parametrize("width", [80, 120])
def test_tables_by_group_have_sums_and_the_worst_first(width: int) -> None:
    found = sixty_pipelines()
    more = [late_target(f"com.pay.Event{n}", 5_000.0 if n == 7 else None, rows=n) for n in range(20)]
    found["pipelines"]["mixed"]["targets"] += more
    shown = printed(screen(group=True, tables=True)(found), width)
    assert max(map(len, shown.splitlines())) <= width
    heads = [line.split()[:6] for line in shown.splitlines() if line.startswith("mixed")]
    assert heads == [
        ["mixed", "com.pay", "20", f"{sum(range(20)):,}", "0", "1.0"],
        ["mixed", "com.shop", "500", f"{sum(range(500)):,}", "1,000", "9.0"],
    ]
    said = " ".join(shown.split())
    assert width == 80 or "1; com.pay.Event7 for 1 h 23 min: storage at s3://lake refuses; 7 entries wait" in said


def test_several_releases_are_one_table_and_one_that_is_silent_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("kafka: [")
    boards = {name: PipelineProgress([name]) for name in ("clicks", "views")}
    for board in boards.values():
        for progress in board.values():
            progress.set_running()
    with serving(Http(port=0), boards["clicks"]) as first, serving(Http(port=0), boards["views"]) as second:
        assert first is not None
        assert second is not None
        places = [first, second, "http://127.0.0.1:1", str(broken)]
        found = collect_releases(places)
        told = CliRunner().invoke(app, ["status", *[word for place in places[:2] for word in ("--all", place)]])
    assert list(found["releases"]) == places
    assert exit_code(found) == 1
    assert exit_code({"releases": {place: found["releases"][place] for place in places[:2]}}) == 0
    shown = printed(fleet_screen.fleet(fleet_screen.rows(found["releases"])), 300)
    assert "no driver answers: nothing at http://127.0.0.1:1/status answers as a driver does" in shown
    assert "is not YAML" in shown
    assert told.exit_code == 0, told.output
    assert {"clicks", "views"} <= set(told.output.split())


def test_a_url_of_another_process_costs_its_own_line_alone() -> None:
    """A supervisor has a `/status`, too, and so have other people's programs."""
    supervisor = {"at": "x", "driver": True, "config": {}, "pipelines": {"clicks": {"up": True, "halted": None}}}
    board = PipelineProgress(["views"])
    others = (supervisor, {"ok": 1}, {"pipelines": []}, {"pipelines": {"clicks": 1}})
    with ExitStack() as stack:
        driver = stack.enter_context(serving(Http(port=0), board))
        urls = [stack.enter_context(answering(found)) for found in others]
        releases = collect_releases([str(driver), *urls])["releases"]
    for url, what in zip(urls, ("a supervisor", *["another program"] * 3), strict=True):
        assert releases[url] == {"error": f"{what} answers there. Give the URL of the driver (http.port)."}
    shown = printed(fleet_screen.fleet(fleet_screen.rows(releases)), 300)
    assert "views" in shown
    assert "no driver answers: a supervisor answers there" in shown


@contextmanager
def answering(found: Any) -> Iterator[str]:
    """A server that answers each GET with this JSON."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


RELEASES = {
    "eu": {"pipelines": {"clicks": pipeline(state="failed", error="torn", targets=[late_target("users", 9.0)])}},
    "us": {"pipelines": {"clicks": pipeline(targets=[late_target("users", None)])}},
    "dead": {"error": "nothing answers"},
}


def screen(**options: Any) -> Callable[[dict[str, Any]], RenderableType]:
    return lambda state: StatusReport(state, StatusView(**options)).page()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("option", ["", "long", "tables"])
def test_no_screen_hides_a_pipeline_of_the_same_name_or_a_silent_release(option: str, width: int) -> None:
    show_it = screen(**({option: True} if option else {}))
    shown = printed(show_it({"at": "2026-11-20T12:00:00Z", "releases": RELEASES}), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "no driver answers: nothing answers" in " ".join(shown.split())
    if option == "long":
        assert "eu/clicks  failed" in shown
        assert "us/clicks  running" in shown
    else:
        assert [line.split()[:2] for line in shown.splitlines() if line.startswith(("eu ", "us "))][:2] == [
            ["eu", "clicks"], ["us", "clicks"],
        ]  # fmt: skip
    assert option or "eu/clicks: table users behind for 9.0 s: storage" in shown


def test_each_release_has_its_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    look = {"at": "2026-11-20T12:00:00Z", "releases": RELEASES}
    reports = iter([StatusReport(look)])
    code = watch_status(reports, Screen(as_json=False, has_lines=False), timedelta(seconds=1))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in lines] == [
        ["eu/clicks", "state=failed"], ["us/clicks", "state=running"], ["dead", "state=silent"],
    ]  # fmt: skip
    assert lines[2].endswith('error="nothing answers"')
    assert code == 1


def test_json_has_a_line_for_each_look_until_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    def looks() -> Iterator[StatusReport]:
        for state in ("running", "failed"):
            yield StatusReport({"at": "2026-11-20T12:00:00Z", "pipelines": {"clicks": pipeline(state=state)}})
        raise KeyboardInterrupt

    code = watch_status(looks(), Screen(as_json=True, has_lines=False), timedelta(seconds=1))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["pipelines"]["clicks"]["state"] for line in lines] == ["running", "failed"]
    assert code == 1, "of the last look"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("long", [False, True])
def test_a_configuration_that_is_not_in_force_is_said_once_a_process(long: bool, width: int) -> None:
    wrong = {"error": "orders: unknown key", "restart": ["kafka"], "read_at": "2026-11-20T12:00:00Z"}
    late = {"error": "", "restart": ["spark.master"], "read_at": "2026-11-20T12:00:00Z"}
    sound = {"error": "", "restart": [], "read_at": "2026-11-20T12:00:00Z"}

    def of(process: str, config: dict[str, Any]) -> dict[str, Any]:
        names = [f"{process}-{n}" for n in range(3)]
        return {
            name: {**pipeline(name), "config": config, "driver": {"url": f"http://{process}:9643"}} for name in names
        }

    one = {"at": "x", "pipelines": {**of("a", wrong), **of("b", late), **of("c", sound)}}
    shown = printed(screen(long=long)(one), width)
    assert max(map(len, shown.splitlines())) <= width
    said = " ".join(shown.split())
    each_times = 3 if long else 1
    why = "orders: unknown key; needs a restart of the process: kafka"
    assert said.count(f"not in force since 2026-11-20 12:00:00 UTC: {why}") == each_times
    assert said.count("needs a restart of the process: spark.master") == each_times
    assert long or "file of http://a:9643: not in force" in said
    several = {"eu": {"config": wrong, "pipelines": of("a", {})}, "us": {"config": sound, "pipelines": of("b", {})}}
    shown = printed(screen(long=long)({"at": "x", "releases": several}), width)
    assert " ".join(shown.split()).count("unknown key") == each_times


def test_a_document_of_an_older_release_is_shown() -> None:
    def without(one: Mapping[str, Any], *keys: str) -> dict[str, Any]:
        return {key: value for key, value in one.items() if key not in keys}

    old = {"pipelines": {"clicks": without(pipeline(), "targets", "health", "scheduling", "rate_limit", "hooks")}}
    assert [row.health.level for row in fleet_screen.rows({"": old})] == ["ok"]
