"""The command `simulate`, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from headrace.autoscaler.decision.policy import DEFAULTS
from headrace.bench.simulation import trace as traces
from headrace.bench.simulation.trace import Trace
from headrace.writer.cli.main import app
from headrace.writer.core.errors import ConfigError

SHORT = Trace("short", "an hour", 15.0, (30_000.0,) * 240, partitions=8, executors_first=1)


def ran(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--trace", "days"], "no trace 'days'; did you mean 'day'"),
        (["--plot", "a.png"], "name one with --trace"),
        (["--trace", "day", "--plot", "a.gif"], "end it in .png"),
        (["--trace", "a.json"], "neither a file nor a trace"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        ran(*arguments)


def test_simulate_plays_a_recorded_trace_and_draws_it(tmp_path):
    path, picture, kept = tmp_path / "short.json", tmp_path / "short.png", tmp_path / "again.json"
    traces.write(SHORT, path)
    page = ran("--trace", str(path), "--policy", "static", "--plot", str(picture), "--save", str(kept))
    assert page.splitlines()[0] == "short: an hour (recorded)"
    assert page.splitlines()[2].startswith("headrace")
    assert picture.stat().st_size > 10_000
    assert traces.read(kept) == SHORT
    document = json.loads(ran("--trace", str(path), "--policy", "none", "--json"))
    (score,) = document["scores"]
    assert score["policy"] == "headrace"
    assert score["executor_hours"] > 0.5
    assert document["policy"]["utilization_target"] == DEFAULTS.utilization_target
