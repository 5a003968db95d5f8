"""The form of log lines: of events, and of what libraries say."""

import json
import os
import subprocess
import sys

import pytest

from headrace.writer.cli.run.run import _print_page_url

SPEAKS = """
import logging as stdlib
from headrace.writer.core import logging
logging.event("not_shown")
logging.set_up()
logging.event("batch_committed", rows=7, because="it was time", pipeline="clicks")
with logging.bound(pipeline="clicks"):
    stdlib.getLogger("botocore").warning("Found %s", "nothing")
stdlib.getLogger("botocore").info("not shown")
try:
    raise ValueError("broken")
except ValueError as error:
    logging.detail(error)
"""


def lines(form: str | None) -> list[str]:
    environment = {**os.environ} if form is None else {**os.environ, "HEADRACE_LOG": form}
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS], capture_output=True, text=True, check=False, timeout=400, env=environment
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_line_for_people_has_time_level_event_and_pipeline_first() -> None:
    event, library, error, *trace = lines(None)
    assert event.split(" ", 1)[1] == "INFO batch_committed pipeline=clicks rows=7 because='it was time'"
    assert library.split(" ", 1)[1] == "WARNING Found nothing pipeline=clicks"
    assert error.split(" ", 1)[1] == "ERROR unexpected"
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ValueError: broken")


def test_a_line_as_json_is_one_object_also_with_a_trace() -> None:
    event, library, error = map(json.loads, lines("json"))
    assert list(event) == ["time", "level", "event", "pipeline", "rows", "because"]
    assert list(event.values())[1:5] == ["info", "batch_committed", "clicks", 7]
    assert (library["level"], library["event"], library["pipeline"]) == ("warning", "Found nothing", "clicks")
    assert error["exception"].endswith("ValueError: broken")


def test_a_form_that_is_not_known_is_refused() -> None:
    assert lines("jsn")[-1].endswith("HEADRACE_LOG is 'jsn': set it to text or json, or unset it.")


def test_a_warning_before_the_set_up_is_a_whole_line(caplog: pytest.LogCaptureFixture) -> None:
    from headrace.writer.core import logging

    logging.event("not_shown")
    logging.warning("registry_unreachable", error="refused", pipeline="clicks")
    assert [one.split(" ", 1)[1] for one in caplog.messages] == [
        "WARNING registry_unreachable pipeline=clicks error=refused"
    ]


@pytest.mark.parametrize(("form", "printed"), [("text", "headrace: page at http://127.0.0.1:9643/\n"), ("json", "")])
def test_run_prints_where_the_page_is_but_not_among_lines_of_json(form, printed, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_LOG", form)
    _print_page_url("http://127.0.0.1:9643")
    assert capsys.readouterr().out == printed
