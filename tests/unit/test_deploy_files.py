"""What the chart and the images hold of the project is fresh, and what they name is there."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.main import get_command

from headrace.writer.cli.main import app
from headrace.writer.config.pipelines import Config

ROOT = Path(__file__).parents[2]
CHART, DOCKER = ROOT / "helm" / "headrace", ROOT / "docker"
# Makes a table with SQLite, looks for one in each other catalog, and prints the modules that this brought.
ICEBERG = """
import json, sys
before = set(sys.modules)
from datetime import timedelta
import pyarrow as pa
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.table.factory import table_at
from headrace.writer.table.log.foreign_writes import CommitFailed
def table(**settings):
    place = CatalogTable("headrace", ("shop",), "clicks", tuple(sorted(settings.items())), timedelta(0))
    return table_at("iceberg", f"{sys.argv[1]}/clicks", "clicks", catalog=place)
made = table(type="sql", uri=f"sqlite:///{sys.argv[1]}/catalog.db")
made.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
assert made.exists()
for settings in (
    {"type": "sql", "uri": "postgresql+psycopg2://nobody@127.0.0.1:1/lake?connect_timeout=1"},
    {"type": "rest", "uri": "http://127.0.0.1:1", "rest.sigv4-enabled": "true", "rest.signing-region": "x"},
    {"type": "glue", "glue.endpoint": "http://127.0.0.1:1", "glue.region": "x", "glue.access-key-id": "x",
     "glue.secret-access-key": "x", "glue.max-retries": "1"},
):
    try:
        table(**settings).exists()
    except (OSError, CommitFailed) as error:
        assert "nstall" not in str(error), error
    else:
        raise AssertionError(settings)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""
OF_KUBERNETES = {"podSecurityContext", "securityContext"}  # rendered whole; the schema knows all their fields


def script(name: str, folder: Path = DOCKER) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_chart_has_the_alerts_of_the_project():
    assert (CHART / "rules/alerts.yaml").read_text() == (ROOT / "recovery/alerts.yaml").read_text(), (
        "stale: run `make reference`"
    )


def test_the_chart_checks_files_by_the_schema_of_the_configuration():
    made = script("reference", ROOT / "docs")
    assert (CHART / "files/headrace.schema.json").read_text() == made.schema_text(), "stale: run `make reference`"


def test_the_chart_and_the_image_have_the_version_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_the_readme_of_the_chart_has_every_value_with_its_description():
    made = script("chart", ROOT / "docs")
    assert (CHART / "README.md").read_text() == made.text(), "stale: run `make reference`"
    rows = {row.key: row for row in made.values((CHART / "values.yaml").read_text())}

    def leaves(values, path=""):
        for key, value in values.items():
            here = f"{path}{key}"
            yield from [here] if here in rows or not isinstance(value, dict) else leaves(value, f"{here}.")

    assert list(leaves(yaml.safe_load((CHART / "values.yaml").read_text()))) == list(rows)
    assert rows["driver.memory"].default == "1g"
    assert rows["podSecurityContext.runAsUser"].text.startswith("the image's user")


def test_a_value_of_the_chart_without_a_description_is_refused():
    made = script("chart", ROOT / "docs")
    text = "# of all\nimage:\n  tag: ''  # the version\n# -- Two lines\n# of it.\nenv: []\n"
    assert [(row.key, row.default, row.text) for row in made.values(text)] == [
        ("image.tag", "", "the version"), ("env", [], "Two lines of it."),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"image.digest has no description in values.yaml, line 3"):
        made.values("image:\n  tag: ''  # x\n  digest: ''\n")


def test_the_chart_names_the_address_of_the_project_and_has_an_icon():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert (chart["home"], chart["sources"]) == (urls["Homepage"], [urls["Source"]])
    (icon,) = re.findall(r'<link rel="icon" href="([^"]+)">', (ROOT / "writer/web/page.html").read_text())
    assert chart["icon"] == icon, "the page's"


def test_the_images_hold_what_the_lock_says():
    for name, text in script("locks").texts().items():
        assert (DOCKER / name).read_text() == text, f"docker/{name} is stale: run `make reference`"


def test_every_package_of_an_image_has_a_hash():
    for path in DOCKER.glob("*.lock"):
        blocks = re.split(r"\n(?=[a-z])", path.read_text())[1:]
        assert blocks
        assert all(" --hash=sha256:" in block for block in blocks), path.name


def test_spark_is_not_in_the_image_of_the_autoscaler():
    names = re.findall(r"^([a-z0-9-]+)==", (DOCKER / "autoscaler.lock").read_text(), re.MULTILINE)
    assert "cronsim" in names
    assert not {"pyspark", "py4j", "pandas", "confluent-kafka"} & set(names)


def test_the_image_of_the_writer_holds_what_iceberg_tables_import_with_each_catalog(tmp_path: Path):
    program = [sys.executable, "-c", ICEBERG, str(tmp_path)]
    done = subprocess.run(program, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)  # noqa: PLW1510
    assert done.returncode == 0, done.stderr
    owners, normal = packages_distributions(), script("locks").normal
    wanted = {normal(one) for module in json.loads(done.stdout) for one in owners.get(module, ())} - {"headrace"}
    held = set(re.findall(r"^([a-z0-9-]+)==", (DOCKER / "writer.lock").read_text(), re.MULTILINE))
    assert {"pyiceberg", "sqlalchemy", "psycopg2-binary", "boto3"} <= wanted
    assert sorted(wanted - held) == []


def test_every_value_has_its_place_in_the_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def missing(values, schema, path=""):
        for key, value in values.items():
            known = schema.get("properties", {}).get(key)
            if known is None:
                if schema.get("additionalProperties") is False:
                    yield f"{path}{key}"
            elif isinstance(value, dict):
                yield from missing(value, known, f"{path}{key}.")

    assert list(missing(values, schema)) == []
    unused = [f"{s}.{k}" for s, v in values.items() if isinstance(v, dict) and s not in OF_KUBERNETES for k in
              set(schema["properties"][s].get("properties", {})) - set(v)]  # fmt: skip
    assert unused == []


def test_every_value_is_used_by_a_template():
    text = "".join(path.read_text() for path in CHART.glob("templates/**/*") if path.is_file())
    for section, value in yaml.safe_load((CHART / "values.yaml").read_text()).items():
        assert f".Values.{section}" in text, section
        for key in value if isinstance(value, dict) and section not in OF_KUBERNETES else ():
            assert re.search(rf"\b{key}\b", text), f"{section}.{key}"


def test_vacuum_of_the_chart_removes_nothing_unless_told():
    assert yaml.safe_load((CHART / "values.yaml").read_text())["jobs"]["vacuum"]["delete"] is False
    jobs = (CHART / "templates" / "jobs.yaml").read_text()
    assert jobs.count("vacuum.delete") == 1
    assert '{{- if $.Values.jobs.vacuum.delete }}{{ $arguments = append $arguments "--yes" }}{{ end }}' in jobs


def test_the_jobs_of_the_chart_that_change_tables_say_yes():
    jobs = (CHART / "templates" / "jobs.yaml").read_text()
    assert '(list "compact" $file "--pipeline" $pipeline "--yes")' in jobs
    assert '(concat (list "backfill" $file "--yes") .arguments)' in jobs


@pytest.mark.parametrize("values", sorted((CHART / "ci").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_pipelines_of_the_examples_are_a_configuration(values):
    given = yaml.safe_load(values.read_text())
    assert ("config" in given) != ("existingConfigMap" in given)
    if "existingConfigMap" in given:
        assert given["pipelines"]
        return
    config = given["config"].replace("${env:REGISTRY_URL}", "http://registry:8081")
    assert Config.model_validate(yaml.safe_load(config)).pipelines


def test_the_commands_that_chart_and_images_run_are_commands():
    files = [path for path in [*CHART.glob("templates/**/*"), *(ROOT / "docker").glob("*")] if path.is_file()]
    run = re.compile(
        r"""(?:\[headrace,|list "headrace"|"headrace",|headrace headrace)\s+"?([a-z][a-z-]+)"""  # [headrace, run, …]
        r"""|(?:"arguments" \((?:ternary \(|concat \()?list|\$arguments := list|\$verb := tuple) "([a-z][a-z-]+)\""""
    )
    found = {word for path in files for pair in run.findall(path.read_text()) for word in pair if word} - {"headrace"}
    assert {"supervisor", "autoscaler", "validate", "audit", "vacuum", "backfill"} <= found
    assert found - get_command(app).commands.keys() == set()


def test_the_chart_refuses_checkpoints_in_the_words_of_the_configuration() -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    (sentence,) = re.findall(r'config: (checkpoints: Spark.s checkpoints cannot lie in %s: .*?)\\n"', helpers)
    location = "gs://lake/checkpoints"
    with pytest.raises(ValueError, match="cannot lie in") as refused:
        Config.model_validate(
            {
                "kafka": {"bootstrap_servers": "kafka:9092"},
                "registry": {"url": "http://registry:8081"},
                "checkpoints": location,
                "pipelines": {
                    "clicks": {
                        "topics": ["clicks"],
                        "table": {"location": "gs://lake/clicks"},
                        "event_time": {"field": "event_time"},
                    }
                },
            }
        )
    assert sentence.replace("%s", location) in str(refused.value)
