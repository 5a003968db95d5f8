"""Runs the programs of a release, and finds those that are missing before anything is built."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.errors import ReleaseError

# Lines of a failing program's output that are told.
_LINES = 15


def run_program(
    command: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None, *, shown: bool = False
) -> str:
    """Run a program and return its standard output. Raises ReleaseError with its last lines if it fails.

    It makes files that all may read. `shown`: its output goes to the terminal instead, and nothing is returned.
    """
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(  # noqa: S603 - the commands are this package's own
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        umask=0o022,
        stdin=subprocess.DEVNULL,
        stdout=None if shown else subprocess.PIPE,
        stderr=None if shown else subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        output = "" if shown else f":\n{_last_lines(done.stdout + done.stderr)}"
        raise ReleaseError(f"`{' '.join(map(str, command[:4]))} …` ended with exit code {done.returncode}{output}")
    return done.stdout or ""


def _last_lines(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-_LINES:])


def find_missing(*, images: bool, helm: Path | None) -> list[str]:
    """Return a sentence for each program that a release needs and that is not here."""
    sentences = []
    if not shutil.which("git"):
        sentences.append("git is not installed (Debian: apt-get install git).")
    if helm is None and not shutil.which("go"):
        sentences.append("helm is not installed, nor Go 1.24, which builds it (tests/engines/kubernetes.sh helm).")
    if not shutil.which("java"):
        sentences.append("Java 17 is not installed, which the wheel's demo runs (Debian: openjdk-17-jre-headless).")
    if images and not has_docker() and not shutil.which("buildah"):
        sentences.append(
            "neither a docker daemon nor buildah is here, which build the images (Debian: apt-get install buildah); "
            "IMAGES=no leaves them out."
        )
    return sentences


def has_docker() -> bool:
    """Return whether a docker daemon answers."""
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0  # noqa: S607


def find_helm() -> Path | None:
    """Return the helm of the path, else the newest that tests/engines/kubernetes.sh built; None: there is none."""
    if installed := shutil.which("helm"):
        return Path(installed)
    cache = os.environ.get("HEADRACE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    folder = Path(cache) if cache else Path(home) / "headrace"
    built = sorted(folder.glob("helm-v*/helm"))
    return built[-1] if built else None
