"""The wheel: it holds every file that the product reads, and runs where there is no clone of the repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from writer.cli.commands import COMMANDS

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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the files that git knows, away from the clone."""
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


def run(*command: str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_a_wheel_holds_each_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(name).decode()
    assert held == set(repository(*PACKAGES)) - FOR_DEVELOPERS
    assert {"writer/web/page.html", "writer/log4j2.properties", "recovery/alerts.yaml"} <= held
    assert "Author: headrace contributors" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_an_installed_wheel_reads_its_own_files_without_the_clone(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are those of this environment; the long test installs all of them."""
    env = environment(tmp_path / "venv")
    run("pip", "install", "-q", "--no-deps", "--no-index", str(wheel), cwd=tmp_path, env=env)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run("python", "-c", READS_ITS_DATA, cwd=tmp_path, env=env).strip() == str(site / "writer" / "__init__.py")
    commands = run("headrace", "--help", cwd=tmp_path, env=env)
    names = [entry.name for entries in COMMANDS.values() for entry in entries]
    assert [name for name in names if name not in commands] == []


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
