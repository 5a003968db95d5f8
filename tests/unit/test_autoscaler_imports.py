"""What the autoscaler imports, and that its image holds this and nothing else."""

import base64
import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.local_driver import Driver, log
from tests.support.sample_records import event

ROOT = Path(__file__).parents[2]
KEYRING = {
    "hash": {"primary": "h1", "keys": {"h1": base64.b64encode(b"h" * 32).decode()}},
    "encrypt": {"primary": "k1", "keys": {"k1": base64.b64encode(b"e" * 32).decode()}},
}
# What only the driver and its tasks evaluate; the autoscaler reads these settings all the same.
RULES_OF_RECORDS: dict[str, Any] = {
    "specs": {"shop.*": {"where": "id >= 0 AND lower(note) <> 'x'", "derive": {"double": "id * 2"}}},
    "privacy": {"fields": {"note": "hash", "email": "encrypt"}},
    "formats": ["avro", "protobuf"],
    "seal": {"enabled": True},
    "compact": {"at_seal": True, "sort_by": ["id"], "dedupe": {"key": ["id"]}},
}


@pytest.fixture(scope="module")
def locks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("locks", ROOT / "docker" / "locks.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["locks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked_packages() -> set[str]:
    lock = (ROOT / "docker" / "autoscaler.lock").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))


def autoscaler_command(*arguments: str) -> list[str]:
    """A command of the autoscaler, in a process that has the packages of its image alone."""
    program = [sys.executable, "-m", "tests.support.limited_imports", ",".join(locked_packages())]
    return [*program, "autoscaler", *arguments]


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The configuration of a table with rows, which no driver has open, and whose Kafka is away."""
    driver = Driver(tmp_path, request.param)
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(20)})], {0: 20})
    settings = driver.config.model_dump(mode="json", exclude_unset=True)
    settings["pipelines"]["clicks"] |= RULES_OF_RECORDS
    settings["kafka"]["request_timeout"] = "100 ms"
    settings["spark"] = {"master": "spark://127.0.0.1:1"}
    settings["http"] = {}
    settings["autoscaler"] = {"port": 0, "token": "t" * 32}
    settings["supervisor"] = {"port": 0}
    settings["keys"] = {"file": str(tmp_path / "keys.json")}
    (tmp_path / "keys.json").write_text(json.dumps(KEYRING))
    path = tmp_path / "pipelines.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_the_autoscaler_reads_a_table_of_each_format_with_the_packages_of_its_image(config: Path) -> None:
    facts = config.with_name("facts.json")
    command = autoscaler_command("explain", str(config), "--save", str(facts))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (pipeline,) = json.loads(facts.read_text())["pipelines"]
    assert pipeline["name"] == "clicks"
    imported = set(json.loads(done.stderr.splitlines()[-1]))
    assert {"pyarrow", "deltalake"} <= imported


@pytest.mark.parametrize("config", ["delta"], indirect=True)
def test_the_autoscaler_runs_with_the_packages_of_its_image(config: Path) -> None:
    command = autoscaler_command("run", str(config), "--dry-run", "--interval", "1 s")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = threading.Timer(120, process.kill)
    deadline.start()
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "scaling_decided" in line:
            process.send_signal(signal.SIGTERM)
    deadline.cancel()
    assert process.wait() == 0, "".join(lines)
    assert "ModuleNotFoundError" not in "".join(lines)
    assert any("autoscaler_listening" in line for line in lines), "".join(lines)


def test_a_package_that_functions_alone_import_is_told_from_one_that_comes_with_its_module(locks: ModuleType) -> None:
    imports = locks.reachable_imports(["headrace.writer.specs.expressions"])
    assert "datafusion" in imports.in_functions
    of_formats = locks.reachable_imports(["headrace.writer.formats.formats"])
    assert "ptars" in of_formats.in_functions
    assert "ptars" not in of_formats.at_import
    assert "datafusion" not in imports.at_import
    assert "pyarrow" in imports.at_import
    assert "headrace.writer.specs" in imports.modules


def test_the_image_of_the_autoscaler_lacks_what_none_of_its_modules_imports(locks: ModuleType) -> None:
    imports = locks.reachable_imports(locks.autoscaler_modules())
    direct = (imports.at_import | imports.in_functions.keys()) - locks.NEVER_CALLED.keys()
    assert direct <= locked_packages()
    assert not {"datafusion", "fastavro", "pandas", "py4j", "pyspark", "authlib"} & locked_packages()


def test_a_package_counts_as_never_called_only_while_a_function_alone_imports_it(
    locks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pyarrow", "matplotlib"):
        monkeypatch.setattr(locks, "NEVER_CALLED", {package: "a reason"})
        with pytest.raises(SystemExit, match=f"NEVER_CALLED of docker/locks.py has {package}"):
            locks.autoscaler_packages()


def test_an_extra_counts_whole_where_one_of_its_packages_is_imported(locks: ModuleType) -> None:
    assert locks.used_extras({"pyiceberg"}) == {"iceberg", "iceberg-postgres"}
    assert locks.used_extras({"pyarrow"}) == set()
