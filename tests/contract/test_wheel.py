"""The wheel: it holds every file that the product reads, and runs where there is no clone of the repository."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import pytest
import yaml

from headrace.writer.cli.commands import COMMANDS
from headrace.writer.config.pipelines import Config
from headrace.writer.core.pages import page_address
from tests.support.doc_examples import headrace_commands, help_examples
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, event

ROOT = Path(__file__).parents[2]
PACKAGES = ("bucketers", "writer", "autoscaler", "recovery", "bench")
# What builds: the packages, their links, and what the project says of itself.
SOURCES = (*PACKAGES, "src", "pyproject.toml", "README.md", "LICENSE")
# Where this environment has what the product imports, and setuptools.
DEPENDENCIES = [path for path in sys.path if path.endswith("site-packages")]
FOR_DEVELOPERS = {"bench/README.md", "bench/published.json"}
READS_ITS_DATA = """
import headrace, headrace.bench.guard, headrace.writer
from pathlib import Path
from headrace.recovery.escalation.error_catalogue import catalogue
from headrace.writer.preflight.capacity import sizing
from headrace.writer.web import page
assert catalogue() and page.content() and headrace.bench.guard.BASELINE.exists()
assert Path(headrace.writer.__file__).with_name("log4j2.properties").exists()
print(headrace.__file__)
"""
# Shows the help of each command, and lets each example of standard input be parsed. Prints the helps by command.
PARSES_EXAMPLES = """
import contextlib, io, json, sys
import headrace, typer
from headrace.writer.cli.main import app

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
print(json.dumps({"module": headrace.__file__, "helps": helps, "parsed": parsed}))
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
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files that git knows and that build, away from the clone."""
    folder = tmp_path_factory.mktemp("source")
    for name in repository(*SOURCES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that HEADRACE_WHEEL names; else build it."""
    if published := os.environ.get("HEADRACE_WHEEL"):
        return Path(published)
    return build_wheel(source, tmp_path_factory.mktemp("dist"))


def build_wheel(source: Path, target: Path) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(target), "."]
    subprocess.run(build, cwd=source, check=True)
    (built,) = target.glob("headrace-*.whl")
    return built


def read_files(wheel: Path) -> dict[str, bytes]:
    """Return what a wheel holds, by name, without what it says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def repository(*paths: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    # A link counts by itself: what is behind it has a path of its own.
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_symlink() or (ROOT / name).is_file()]


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
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(name).decode()
    names = set(read_files(wheel))
    own = {"headrace/__init__.py", "headrace/py.typed"}
    assert names == own | {f"headrace/{name}" for name in set(repository(*PACKAGES)) - FOR_DEVELOPERS}
    data = ("writer/web/page.html", "writer/log4j2.properties", "recovery/alerts.yaml")
    assert {f"headrace/{name}" for name in data} <= names
    assert "Author: headrace contributors" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_a_source_archive_holds_files_for_links_and_builds_the_same_wheel(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, check=True)
    (sdist,) = tmp_path.glob("headrace-*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path, filter="data")
    assert [member.name for member in members if not member.isfile() and not member.isdir()] == []
    root = sdist.name.removesuffix(".tar.gz")
    folders = {member.name.split("/")[1] for member in members if member.name.count("/") > 1}
    assert folders == {"src"}
    rebuilt = build_wheel(tmp_path / root, tmp_path / "dist")
    assert read_files(rebuilt) == read_files(wheel)


def test_an_editable_installation_imports_the_clone_by_one_name(source: Path, tmp_path: Path) -> None:
    env = environment(tmp_path / "venv")
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(DEPENDENCIES))
    install = ("pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-e", str(source))
    # The environment's own setuptools is older than what builds.
    run(*install, cwd=tmp_path, env={**env, "PYTHONPATH": os.pathsep.join(DEPENDENCIES)})
    module = run("python", "-c", READS_ITS_DATA, cwd=tmp_path, env=env).strip()
    assert module == str(source / "src" / "headrace" / "__init__.py")
    program = "import importlib.util; print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    names = run("python", "-c", f"import sys; {program}", *PACKAGES, cwd=tmp_path, env=env).strip()
    assert names == "[]"
    assert "headrace " in run("headrace", "--version", cwd=tmp_path, env=env)


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
    (packages / "dependencies.pth").write_text("\n".join(DEPENDENCIES))
    return Installation(env, packages)


def test_an_installed_wheel_reads_its_own_files_without_the_clone(installation: Installation, tmp_path: Path) -> None:
    module = installation.run("python", "-c", READS_ITS_DATA, cwd=tmp_path).strip()
    assert module == str(installation.packages / "headrace" / "__init__.py")
    commands = installation.run("headrace", "--help", cwd=tmp_path)
    names = [entry.name for entries in COMMANDS.values() for entry in entries]
    assert [name for name in names if name not in commands] == []


def test_each_command_of_an_installed_wheel_shows_its_help_and_takes_the_examples(
    installation: Installation, tmp_path: Path
) -> None:
    lines = [list(command.arguments[1:]) for command in headrace_commands()]
    output = run("python", "-c", PARSES_EXAMPLES, cwd=tmp_path, env=installation.env, given=json.dumps(lines))
    shown = json.loads(output.splitlines()[-1])
    assert shown["module"] == str(installation.packages / "headrace" / "__init__.py")
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
