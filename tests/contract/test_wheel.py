"""The wheel: it holds every file that the product reads, and runs where there is no clone of the repository."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import pytest
import yaml

from tests.support.doc_examples import headrace_commands, help_examples
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, event
from writer.cli.commands import COMMANDS
from writer.config.pipelines import Config
from writer.core.pages import page_address

ROOT = Path(__file__).parents[2]
PACKAGES = ("bucketers", "writer", "autoscaler", "recovery", "bench")
FOR_DEVELOPERS = {"bench/README.md", "bench/published.json"}
READS_ITS_DATA = """
import bench.guard, writer
from pathlib import Path
from recovery.escalation.error_catalogue import catalogue
from writer.preflight import sizing
from writer.web import page
assert catalogue() and page.content() and bench.guard.BASELINE.exists()
assert Path(writer.__file__).with_name("log4j2.properties").exists()
print(writer.__file__)
"""
# Shows the help of each command, and lets each example of standard input be parsed. Prints the helps by command.
PARSES_EXAMPLES = """
import contextlib, io, json, sys
import typer, writer
from writer.cli.main import app

root = typer.main.get_command(app)
def commands(group, prefix=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name
helps = {}
for name in commands(root):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app([*name.split(), "--help"], standalone_mode=False)
    helps[name] = out.getvalue()
parsed = 0
for words in json.load(sys.stdin):
    command = root
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)
    parsed += 1
print(json.dumps({"module": writer.__file__, "helps": helps, "parsed": parsed}))
"""
# Of tables, without a server.
COMMANDS_OF_A_TABLE = (
    "headrace validate --offline pipelines.yaml",
    "headrace ddl pipelines.yaml --engine trino",
    "headrace buckets pipelines.yaml",
    "headrace explain pipelines.yaml",
    "headrace schema plan pipelines.yaml --file 1.avsc",
    "headrace delete-rows pipelines.yaml --where 'id = 4'",
    "headrace delete-rows pipelines.yaml --where 'id = 4' --yes",
    "headrace compact pipelines.yaml",
    "headrace vacuum pipelines.yaml",
    "headrace audit pipelines.yaml --deep",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that HEADRACE_WHEEL names; else build it from the files that git knows, away from the clone."""
    if published := os.environ.get("HEADRACE_WHEEL"):
        return Path(published)
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in repository(*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(target), "."]
    subprocess.run(build, cwd=source, check=True)
    (built,) = target.glob("headrace-*.whl")
    return built


def repository(*paths: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def environment(home: Path) -> dict[str, str]:
    """Make an empty virtual environment. Returns the variables of a process in it, which name no clone."""
    venv.create(home, with_pip=True)
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return {**kept, "PATH": f"{home / 'bin'}:{kept['PATH']}"}


def run(*command: str, cwd: Path, env: dict[str, str], code: int = 0, given: str = "") -> str:
    """Run a command, `given`: to its standard input. Returns what it printed; of one that fails, errors too."""
    done = subprocess.run(command, cwd=cwd, env=env, input=given, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == code, f"{command}: {output[-4000:]}"
    assert "Traceback" not in output, f"{command}: {output[-4000:]}"
    return done.stdout if code == 0 else output


def test_a_wheel_holds_each_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(name).decode()
    assert held == set(repository(*PACKAGES)) - FOR_DEVELOPERS
    assert {"writer/web/page.html", "writer/log4j2.properties", "recovery/alerts.yaml"} <= held
    assert "Author: headrace contributors" in metadata
    assert "License-Expression: Apache-2.0" in metadata


@dataclass(frozen=True)
class Installation:
    """The wheel in a virtual environment."""

    # Variables of a process in the environment.
    env: dict[str, str]
    # The folder of its modules.
    packages: Path

    def run(self, *command: str, cwd: Path, code: int = 0) -> str:
        return run(*command, cwd=cwd, env=self.env, code=code)


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Install the wheel. Its dependencies are those of this environment; the long test installs all of them."""
    home = tmp_path_factory.mktemp("installation")
    env = environment(home / "venv")
    run("pip", "install", "-q", "--no-deps", "--no-index", str(wheel), cwd=home, env=env)
    (packages,) = (home / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installation(env, packages)


def test_an_installed_wheel_reads_its_own_files_without_the_clone(installation: Installation, tmp_path: Path) -> None:
    module = installation.run("python", "-c", READS_ITS_DATA, cwd=tmp_path).strip()
    assert module == str(installation.packages / "writer" / "__init__.py")
    commands = installation.run("headrace", "--help", cwd=tmp_path)
    names = [entry.name for entries in COMMANDS.values() for entry in entries]
    assert [name for name in names if name not in commands] == []


def test_each_command_of_an_installed_wheel_shows_its_help_and_takes_the_examples(
    installation: Installation, tmp_path: Path
) -> None:
    lines = [list(command.arguments[1:]) for command in headrace_commands()]
    output = run("python", "-c", PARSES_EXAMPLES, cwd=tmp_path, env=installation.env, given=json.dumps(lines))
    shown = json.loads(output.splitlines()[-1])
    assert shown["module"] == str(installation.packages / "writer" / "__init__.py")
    assert shown["parsed"] == len(lines)
    assert set(shown["helps"]) == help_examples().keys()
    for name, text in shown["helps"].items():
        assert help_examples()[name] in " ".join(text.split()), name
        assert "Exit codes: 0 " in " ".join(text.split()), name


def test_an_installed_wheel_runs_the_examples_that_need_no_server(installation: Installation, tmp_path: Path) -> None:
    copytree(ROOT / "docs" / "examples", tmp_path, dirs_exist_ok=True)
    copytree(tmp_path / "shop", tmp_path, dirs_exist_ok=True)
    assert "10 passed" in installation.run("headrace", "test", "specs/", cwd=tmp_path)
    assert "10 passed" in installation.run("headrace", "test", "specs/", "--junit", "tests.xml", cwd=tmp_path)
    facts = ["headrace", "autoscaler", "explain", "--facts", "autoscale-facts.json"]
    assert "executors" in installation.run(*facts, cwd=tmp_path)
    schema = json.loads(installation.run("headrace", "validate", "--json-schema", cwd=tmp_path))
    assert schema == Config.json_schema()


def test_an_installed_wheel_reads_and_changes_a_table(installation: Installation, tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(20)})], {0: 20})
    settings = driver.config.model_dump(mode="json", exclude_unset=True)
    (tmp_path / "1.avsc").write_text(json.dumps(EVENT))
    settings["registry"] = {"files": {1: "1.avsc"}}
    (tmp_path / "pipelines.yaml").write_text(yaml.safe_dump(settings))
    for line in COMMANDS_OF_A_TABLE:
        output = installation.run(*shlex.split(line), cwd=tmp_path)
        assert output.strip(), line
    assert "It adds up." in output
    assert "no Kafka broker answers" in installation.run("headrace", "size", "pipelines.yaml", cwd=tmp_path, code=1)
    init = "headrace init --bootstrap-servers broker-1:9092 --registry-url http://registry:8081 --topic clicks"
    assert "pipelines.yaml exists" in installation.run(*shlex.split(init), cwd=tmp_path, code=2)


def test_an_installed_wheel_names_pages_by_their_addresses(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "pipelines.yaml").write_text("pipelines: {clicks: {topcs: [clicks]}}\n")
    output = installation.run("headrace", "validate", "pipelines.yaml", cwd=tmp_path, code=2)
    assert page_address("docs/REFERENCE.md") in "".join(output.split())
    missing = installation.run("headrace", "status", "none.yaml", cwd=tmp_path, code=2)
    assert "headrace init" in missing


@pytest.mark.timeout(1200)
def test_an_empty_environment_runs_the_demo_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    env = environment(tmp_path / "venv")
    pinned = tmp_path / "constraints.txt"
    lock = (ROOT / "requirements.lock").read_text()
    pinned.write_text("\n".join(map("".join, re.findall(r"^([\w.-]+)(?:\[.*?\])?(==.*?) \\$", lock, re.MULTILINE))))
    run("pip", "install", "-q", "-c", str(pinned), f"{wheel}[demo]", cwd=tmp_path, env=env)
    shown = run("headrace", "demo", "--events", "2000", "--keep", "kept", "--no-hold", cwd=tmp_path, env=env)
    assert re.search(r"2[,.]?000", shown), shown
    assert list((tmp_path / "kept").rglob("*.parquet"))
