"""The JSON schema of the configuration file takes what headrace takes, and marks what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.config.pipelines import Config
from tests.support.doc_examples import documented_configs
from tests.support.json_schema import fits

ROOT = Path(__file__).parents[2]
SCHEMA = Config.json_schema()
CONFIGURATION = {
    "kafka": {"bootstrap_servers": "broker-1:9092"},
    "registry": {"url": "http://registry:8081"},
    "checkpoints": "/lake/checkpoints",
    "pipelines": {
        "clicks": {"topics": ["clicks"], "table": {"location": "/lake/clicks"}, "event_time": {"field": "event_time"}}
    },
}


def test_the_schema_accepts_every_configuration_of_the_docs():
    configs = documented_configs()
    assert len(configs) > 20
    for config in configs:
        assert fits(config, SCHEMA), config


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({"topics": ["a", "b"]}, True),
        ({"topics": {"names": ["a"], "pattern": "b.*", "except": ["bc"]}}, True),
        ({"topics": {"patern": "b.*"}}, False),
        ({"wire": "confluent"}, True),
        ({"wire": {"format": "header", "header": "id", "ids": "global"}}, True),
        ({"wire": "json"}, False),
        ({"retention": "400 d"}, True),
        ({"retention": 90}, False),
        ({"comit": {"max_delay": "1 min"}}, False),
        ({"commit": {"max_offsets": 0}}, False),
        ({"commit": {"max_delay": "1 min"}}, True),
        ({"roll": {"target_file_size": "64 MiB"}}, True),
        ({"roll": {"target_file_size": 64}}, False),
        ({"hooks": [{"type": "webhook", "url": "https://host/path"}]}, True),
        ({"hooks": [{"type": "webhook"}]}, False),
        ({"start": {"timestamp": "2026-11-20T05:00:00Z"}}, True),
    ],
)
def test_the_schema_accepts_what_headrace_accepts(change, taken):
    settings = json.loads(json.dumps(CONFIGURATION))
    (pipeline,) = settings["pipelines"].values()
    pipeline.update(change)
    assert fits(settings, SCHEMA) == taken
    if taken:
        Config.model_validate(settings)
    else:
        with pytest.raises(ValueError, match=next(iter(change))):
            Config.model_validate(settings)


def test_validate_prints_it_without_a_file():
    done = CliRunner().invoke(app, ["validate", "--json-schema"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, SCHEMA)
