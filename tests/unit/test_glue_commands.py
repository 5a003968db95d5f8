"""AWS Glue in configurations and commands: what must be named, what `schema plan`, `validate` and `init` make of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.framing.wire_format import GLUE, Wire
from headrace.writer.preflight.proposal.value_formats import find_formats
from headrace.writer.schemas.registry import describe_subjects
from tests.servers.glue_api import GlueApi
from tests.servers.objects import CREDENTIALS
from tests.servers.scripted import serve_script
from tests.support.glue_values import compressed, plain
from tests.support.sample_records import EVENT, WIDER, event
from tests.support.wire_formats import table

KEY = {"key": {"type": "avro", "name": "user", "wire": "glue"}}
DEAD_END = "http://127.0.0.1:9"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> GlueApi:
    for name, text in CREDENTIALS.items():
        monkeypatch.setenv(name, text)
    return GlueApi()


@pytest.fixture
def endpoint(api: GlueApi) -> Iterator[str]:
    with serve_script(api) as server:
        yield server.url


def document(root: Path, registry: dict[str, Any], **pipeline: Any) -> dict[str, Any]:
    clicks = {
        "topics": ["clicks"],
        "table": {"location": str(root / "lake")},
        "event_time": {"field": "at"},
        **pipeline,
    }
    return {
        "kafka": {"bootstrap_servers": "127.0.0.1:9", "request_timeout": "1 s"},
        "registry": registry,
        "checkpoints": str(root / "checkpoints"),
        "pipelines": {"clicks": clicks},
    }


@pytest.mark.parametrize(
    ("registry", "pipeline", "sentence"),
    [
        (
            {"url": DEAD_END},
            {"wire": "glue"},
            r"pipelines\.clicks\.wire has ids of the AWS Glue Schema Registry; name it",
        ),
        ({"url": DEAD_END}, {"wire": ["confluent", "glue"]}, "has ids of the AWS Glue Schema Registry; name it"),
        ({"url": DEAD_END}, {"columns": KEY}, r"columns\.key\.wire has ids of the AWS Glue Schema Registry"),
        (
            {"glue": {}},
            {"wire": "confluent"},
            r"has confluent ids, which AWS Glue's registry does not know; give registry\.url",
        ),
        ({"glue": {}}, {"wire": ["glue", "apicurio"]}, "has global ids, which AWS Glue's registry does not know"),
    ],
)
def test_a_registry_that_a_wire_format_needs_must_be_named(
    tmp_path: Path, registry: dict[str, Any], pipeline: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config.model_validate(document(tmp_path, registry, **pipeline))


@pytest.mark.parametrize(
    ("registry", "pipeline"),
    [
        ({"glue": "events"}, {"wire": "glue"}),
        ({"glue": {}}, {}),
        ({"glue": {}}, {"wire": "single_object"}),
        ({"glue": {}}, {"formats": ["json"], "columns": {"declared": {"at": "timestamp"}}}),
        ({"glue": {}, "url": DEAD_END}, {"wire": ["glue", "apicurio"], "columns": KEY}),
        ({"files": {str(uuid4()): "event.avsc"}}, {"wire": "glue"}),
    ],
)
def test_what_is_named_is_enough(tmp_path: Path, registry: dict[str, Any], pipeline: dict[str, Any]) -> None:
    Config.model_validate(document(tmp_path, registry, **pipeline))


def run(root: Path, words: list[str], registry: dict[str, Any], **pipeline: Any) -> tuple[int, str]:
    path = root / "headrace.yaml"
    path.write_text(yaml.safe_dump(document(root, registry, **pipeline)))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words[:2], str(path), *words[2:]])
    if isinstance(result.exception, HeadraceError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.stdout


@pytest.mark.parametrize("has_url", [False, True])
def test_a_schema_of_glue_is_planned_by_its_guid(tmp_path: Path, api: GlueApi, endpoint: str, has_url: bool) -> None:
    api.add("clicks", EVENT)
    wider = api.add("Wider", WIDER)
    registry: dict[str, Any] = {"glue": {"endpoint": endpoint}}
    if has_url:
        registry["url"] = DEAD_END
    code, text = run(tmp_path, ["schema", "plan", "--id", str(wider)], registry, wire="glue")
    assert code == 0
    assert f"schema id {wider}" in text
    assert "extra" in text
    missing = uuid4()
    code, text = run(tmp_path, ["schema", "plan", "--id", str(missing)], registry, wire="glue")
    assert code == 1
    assert f"schema id {missing} is not in AWS Glue" in text
    code, text = run(tmp_path, ["schema", "plan", "--id", "not-a-guid"], registry, wire="glue")
    assert code == 2
    assert "--id not-a-guid is no id of a schema" in text


def test_validate_names_the_registry_and_where_schemas_are_looked_for(
    tmp_path: Path, api: GlueApi, endpoint: str
) -> None:
    path = tmp_path / "headrace.yaml"
    registry = {"glue": {"endpoint": endpoint, "name": "default-registry"}}
    path.write_text(yaml.safe_dump(document(tmp_path, registry, wire="glue")))
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["validate", str(path), "--json"])
    findings = (
        json.loads(result.stdout)["checks"] if "checks" in json.loads(result.stdout) else json.loads(result.stdout)
    )
    text = json.dumps(findings)
    assert "AWS Glue registry default-registry of AWS Glue at 127.0.0.1" in text
    assert "answers" in text
    assert "none is registered as clicks in AWS Glue" in text
    assert "ListSchemaVersions" in api.asked


def test_subjects_of_both_registries_are_named(tmp_path: Path) -> None:
    both = Config.model_validate(document(tmp_path, {"url": DEAD_END, "glue": {"schemas": {"clicks": ["Click"]}}}))
    assert describe_subjects(both.registry, ["clicks"]) == "clicks-value or Click in AWS Glue"
    assert describe_subjects(both.registry, ["clicks"], "key") == "clicks-key or clicks-key in AWS Glue"


@pytest.mark.parametrize("frame", [plain, compressed])
def test_a_sample_shows_glue_s_frames(frame: Any) -> None:
    version_id = UUID("89791762-2336-4186-9674-299b90a802e2")
    sample: pa.Table = table([(frame(version_id, event(number)[5:]), {}) for number in range(30)])

    def find_schema(wire: Wire, schema_id: int) -> str | None:
        return json.dumps(EVENT) if (wire, schema_id) == (GLUE, version_id.int) else None

    formats = find_formats(sample, find_schema)
    assert (formats.formats, formats.wire) == (("avro",), GLUE)
    assert "header of AWS Glue" in formats.reason
