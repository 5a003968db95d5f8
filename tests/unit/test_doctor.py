"""`headrace doctor` of a checkpoint: what it shows, and how it ends."""

import json

import pytest
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.clients import kafka
from headrace.writer.core.errors import ConfigError
from tests.support.checkpoint_files import CheckpointRun

ID = "a76f7e84-306b-4262-ab49-81df29c41119"


@pytest.fixture
def run(tmp_path):
    made = CheckpointRun(tmp_path).started(0, 0).planned(0, 5, 4).committed(0).planned(1, 6, 4)
    (made.path / "metadata").write_text(json.dumps({"id": ID}))
    return made


def told(*words):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["doctor", *map(str, words)], catch_exceptions=False)


def test_a_checkpoint_that_is_well_ends_with_0(run):
    found = told("--checkpoint", run.path)
    assert found.exit_code == 0, found.output
    assert "✓ files       3 files of offsets and commits can be read" in found.output
    assert "- log         no broker was named" in found.output
    assert found.output.rstrip().endswith("All is well.")


def test_a_finding_ends_with_1_and_says_where_it_leads(run):
    (run.path / "offsets/1").write_bytes(b"")
    found = told("--checkpoint", run.path)
    assert found.exit_code == 1
    hint = "It may be removed by hand only where your sink has nothing of batch 1"
    assert f"✗ files       offsets/1: it is empty. {hint} → L3" in found.output
    assert "Leads to L3: a new checkpoint from where your sink ends." in found.output


def test_a_machine_reads_the_same(run):
    (run.path / "offsets/1").write_text("v2\n{}\n{}")
    found = told("--checkpoint", run.path, "--json")
    assert found.exit_code == 1
    (document,) = json.loads(found.output)["checkpoints"]
    assert (document["checkpoint"], document["halt"], document["leads_to"]) == (str(run.path), True, None)
    (check,) = [check for check in document["checks"] if check["ok"] is False]
    assert (check["name"], check["level"], check["halt"]) == ("spark", None, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "cannot read pipelines.yaml.* set HEADRACE_CONFIG to it, or write ./pipelines.yaml"),
        (["x.yaml", "--checkpoint", "/x"], "name either"),
        (["--checkpoint", "relative"], "is relative"),
        (["--checkpoint", "s3a://b/c"], "write it as s3://b/c"),
        (["--checkpoint", "/nowhere/at/all"], "holds no checkpoint"),
    ],
)
def test_words_that_name_no_checkpoint_are_a_configuration_error(words, said):
    with pytest.raises(ConfigError, match=said) as error:
        told(*words)
    assert error.value.exit_code == 2


def test_pipelines_share_one_wait_for_a_silent_broker(tmp_path, monkeypatch):
    questions: list[str] = []

    class Silent(kafka.BrokerClient):
        def __getattribute__(self, name):
            if name in ("ask_any", "describe_topics", "log_offsets"):
                questions.append(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(kafka, "BrokerClient", Silent)
    rest = {"event_time": {"field": "at"}}
    config = {
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"},
        "registry": {"url": "http://127.0.0.1:1"},
        "checkpoints": str(tmp_path / "checkpoints"),
        "pipelines": {
            name: {"topics": [name], "table": {"location": str(tmp_path / name)}, **rest}
            for name in ("clicks", "installs")
        },
    }
    (tmp_path / "pipelines.yaml").write_text(json.dumps(config))
    found = told(tmp_path / "pipelines.yaml", "--json")
    assert found.exit_code in (0, 1), found.output
    for one in json.loads(found.output)["checkpoints"]:
        assert any("no Kafka broker answers at 127.0.0.1:1" in check["message"] for check in one["checks"]), one
    assert questions == ["describe_topics"]


def test_nothing_is_changed(run):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    (run.path / "offsets/1").write_bytes(b"")
    told("--checkpoint", run.path)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == {
        **before, run.path / "offsets/1": b"",
    }  # fmt: skip
