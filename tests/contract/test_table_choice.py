"""Which pipelines and tables each command works on: one rule, held against every command that has such an option."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from headrace.writer.cli.main import app
from headrace.writer.core.errors import ConfigError, HeadraceError
from tests.support.routed_window import Routed
from tests.support.sealed_lake import SealedLake

# On all pipelines of the file, or those that are named.
MANY = {
    "audit", "autoscaler explain", "autoscaler run", "backfill", "buckets", "ddl", "doctor", "explain", "gaps close",
    "gaps list", "gaps show",
    "hooks list", "limit", "pause", "resume", "retention", "run", "size", "status", "supervisor explain",
    "supervisor run", "validate",
}  # fmt: skip
# On one, which must be named where there are several.
ONE = {
    "compact", "convert", "delete-rows", "diff", "dlq list", "dlq replay", "dlq show", "gaps open",
    "hooks run", "hooks skip", "preview", "privacy list", "privacy release", "promote", "reprocess",
    "rewind", "schema accept", "schema plan", "seal", "shadow", "table accept", "table adopt", "topic adopt",
    "vacuum", "wait",
}  # fmt: skip
# Of a route, on each table by itself, or on one, which must be named.
EACH_TABLE = {"buckets", "ddl", "hooks list", "retention"}
ONE_TABLE = {"compact", "delete-rows", "hooks run", "hooks skip", "seal", "wait"}
# What a command needs beside its pipeline.
NEEDED = {
    "backfill": ["--from-archive", "/nowhere"], "ddl": ["--engine", "trino"], "delete-rows": ["--where", "id = 3"],
    "diff": ["--with", "FILE"], "gaps close": ["3f2a", "--reason", "a test"], "gaps open": ["--reason", "a test"],
    "gaps show": ["3f2a"], "hooks skip": ["--hook", "h", "--bucket", "2026-11-20T05"],
    "limit": ["--records-per-second", "5"], "privacy release": ["--record", "a.B", "--path", "c"],
    "promote": ["--with", "FILE", "--shadow", "/nowhere"],
    "reprocess": ["--buckets", "2026-11-20T05", "--from", "raw"], "rewind": ["--to", "1"],
    "schema accept": ["--id", "7"], "schema plan": ["--file", "FILE"],
    "shadow": ["--with", "FILE", "--location", "/nowhere"], "wait": ["--sealed", "2026-11-20T05"],
}  # fmt: skip
# These start programs or look for servers before anything of the file is chosen.
STARTING = {"autoscaler run", "autoscaler explain", "doctor", "run", "supervisor run"}


def commands(group: Any, *above: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every command of the CLI by its words, with its options by their names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield (
                " ".join((*above, name)),
                {option: parameter for parameter in command.params for option in parameter.opts},
            )


COMMANDS = dict(commands(typer.main.get_command(app)))


def run(words: str, file: Path, *options: str) -> Result:
    needed = [str(file) if word == "FILE" else word for word in NEEDED.get(words, [])]
    return CliRunner().invoke(app, [*words.split(), str(file), *needed, *options])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two pipelines, of which nothing is there yet."""
    pipelines = {
        name: {"topics": [name], "table": {"location": str(tmp_path / name)}, "event_time": {"field": "at"}}
        for name in ("clicks", "orders")
    }
    document = {
        "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "registry": {"url": "http://127.0.0.1:1"},
        "checkpoints": str(tmp_path / "checkpoints"), "pipelines": pipelines,
    }  # fmt: skip
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_every_command_with_such_an_option_is_in_the_table() -> None:
    repeated = {words for words, options in COMMANDS.items() if "--pipeline" in options}
    assert {words for words in repeated if COMMANDS[words]["--pipeline"].multiple} == MANY
    assert {words for words in repeated if not COMMANDS[words]["--pipeline"].multiple} == ONE
    with_target = {words for words, options in COMMANDS.items() if "--target" in options}
    # `preview` shows the records of all tables, or those of one.
    assert with_target - {"preview", "chaos"} == EACH_TABLE | ONE_TABLE


@pytest.mark.parametrize("words", sorted(ONE))
def test_a_command_for_one_pipeline_asks_which_with_the_names(file: Path, words: str) -> None:
    refused = run(words, file)
    assert isinstance(refused.exception, ConfigError), (refused.output, refused.exception)
    assert str(refused.exception) == "there are 2 pipelines; say which: --pipeline clicks or orders"


@pytest.mark.parametrize("words", sorted((MANY | ONE) - STARTING))
def test_a_pipeline_that_is_not_there_is_refused_by_name(file: Path, words: str) -> None:
    refused = run(words, file, "--pipeline", "click")
    text = str(refused.exception)
    if words == "validate":
        # It shows what is wrong as a finding.
        assert refused.exit_code == ConfigError.exit_code
        text = " ".join(refused.output.split())
    else:
        assert isinstance(refused.exception, ConfigError), (refused.output, refused.exception)
    assert "the configuration has no pipeline 'click'" in text
    assert "did you mean 'clicks'" in text.lower()


@pytest.fixture
def routed(tmp_path: Path) -> Path:
    """A route of two tables with rows, beside a pipeline without one, which has no table yet."""
    lake = Routed(tmp_path, "delta")
    lake.carry([(1, 1, 0), (2, 2, 0)])
    document = lake.config.model_dump(mode="json", exclude_unset=True)
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("words", sorted(ONE_TABLE))
@pytest.mark.parametrize(("options", "problem"), [((), "fills 2 tables"), (("--target", "x"), "has no target 'x'")])
def test_a_command_for_one_table_of_a_route_asks_which_with_the_names(
    routed: Path, words: str, options: tuple[str, ...], problem: str
) -> None:
    refused = run(words, routed, *options)
    assert isinstance(refused.exception, ConfigError), (refused.output, refused.exception)
    assert str(refused.exception) == f"pipeline 'clicks' {problem}; say which table: --target Event or Other"


@pytest.mark.parametrize("words", sorted(EACH_TABLE))
def test_a_command_for_each_table_of_a_route_names_each_by_itself(routed: Path, words: str) -> None:
    def titles(*options: str) -> list[str]:
        done = run(words, routed, "--json", *options)
        assert done.exit_code == 0, (done.output, done.exception)
        document = json.loads(done.stdout)
        if words == "ddl":
            return [f"{table['pipeline']}/{table['target']}" for table in document["tables"]]
        return list(document["pipelines"])

    assert titles() == ["clicks/Event", "clicks/Other"]
    assert titles("--target", "Other") == ["clicks/Other"]
    assert titles("--pipeline", "clicks", "--pipeline", "clicks") == ["clicks/Event", "clicks/Other"]
    refused = run(words, routed, "--target", "x")
    assert "say which table: --target Event or Other" in str(refused.exception)


def test_ddl_calls_each_table_of_a_route_by_its_folder(routed: Path) -> None:
    printed = run("ddl", routed).stdout
    assert "-- clicks/Event" in printed
    assert "-- clicks/Other" in printed
    assert [line.rpartition("table_name => ")[2] for line in printed.splitlines() if "register_table" in line] != []
    assert "'event'" in printed
    assert "'other'" in printed
    assert "'clicks'" not in printed
    refused = run("ddl", routed, "--table", "delta.lake.x")
    assert "clicks/Event, clicks/Other" in str(refused.exception)
    assert "'x'" in run("ddl", routed, "--table", "delta.lake.x", "--target", "Event").stdout


def test_a_target_without_a_pipeline_says_which_pipelines_are_meant(routed: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(routed.read_text())
    document["pipelines"]["plain"] = {
        "topics": ["plain"], "table": {"location": str(tmp_path / "plain")}, "event_time": {"field": "at"},
    }  # fmt: skip
    routed.write_text(yaml.safe_dump(document))
    listed = run("buckets", routed, "--target", "Event", "--json")
    assert list(json.loads(listed.stdout)["pipelines"]) == ["clicks/Event"]
    refused = run("buckets", routed, "--target", "Event", "--pipeline", "plain")
    assert "pipeline 'plain' has no route" in str(refused.exception)


@pytest.fixture
def with_one_broken(tmp_path: Path) -> Path:
    """A file of two pipelines, of which the table of the first, which has rows and a hook, cannot be read."""
    pipelines = {}
    for name in ("broken", "clicks"):
        lake = SealedLake(tmp_path / name)
        lake.add(5, 3)
        pipelines[name] = {
            "topics": ["clicks"],
            "table": {"location": lake.table.location},
            "event_time": {"field": "at"},
            "retention": "9000 d",
            "hooks": [{"type": "webhook", "url": "http://127.0.0.1:1"}],
        }
    broken = Path(pipelines["broken"]["table"]["location"])
    (broken / "_delta_log" / "00000000000000000001.json").write_text("no entry")
    outbox = broken / "_headrace" / "hooks" / "webhook"
    outbox.mkdir(parents=True)
    (outbox / f"{0:020}.json").write_text("no content")
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump({
        "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "registry": {"url": "http://127.0.0.1:1"},
        "checkpoints": str(tmp_path / "checkpoints"), "pipelines": pipelines,
    }))  # fmt: skip
    return file


@pytest.mark.parametrize("command", sorted(EACH_TABLE))
def test_a_table_that_cannot_be_read_is_named_after_the_others_are_shown(with_one_broken: Path, command: str) -> None:
    words = [*command.split(), str(with_one_broken), *NEEDED.get(command, [])]
    if "--json" in COMMANDS[command]:
        words.append("--json")
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, HeadraceError), result.output
    assert not isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("broken: ")
    assert "\nheadrace: " not in str(result.exception)
    assert '"clicks"' in result.output
    assert '"broken"' not in result.output
