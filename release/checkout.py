"""The checkout that is released: its commit, and whether it says the version everywhere."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from release.errors import ReleaseError
from release.programs import run_program

LOCKS = (
    "requirements.lock",
    "docker/writer.lock",
    "docker/autoscaler.lock",
    "docker/build.lock",
    "release/release.lock",
)
_SHOWN = 5
_CHART_LINE = re.compile(r'^(?P<key>version|appVersion): "?(?P<value>[^"\n]+)"?$', re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """A clean checkout of one commit."""

    folder: Path
    commit: str
    # Of the commit, in seconds since 1970: SOURCE_DATE_EPOCH of all that is built.
    epoch_s: int


def read_checkout(folder: Path) -> Checkout:
    """Return the checkout. Raises ReleaseError if it differs from its commit."""
    status = run_program(["git", "status", "--porcelain"], folder).splitlines()
    if status:
        more = "" if len(status) <= _SHOWN else f" and {len(status) - _SHOWN} more"
        files = ", ".join(line[3:] for line in status[:_SHOWN])
        raise ReleaseError(f"this tree differs from its commit: {files}{more}. Commit or stash first.")
    commit = run_program(["git", "rev-parse", "HEAD"], folder).strip()
    epoch_s = int(run_program(["git", "show", "-s", "--format=%ct", "HEAD"], folder))
    return Checkout(folder, commit, epoch_s)


def project_address(pyproject: str) -> str:
    """Return the project's address, from pyproject.toml."""
    settings: Mapping[str, Any] = tomllib.loads(pyproject)
    return str(settings["project"]["urls"]["Source"])


def check_versions(version: str, chart_version: str, pyproject: str, chart: str) -> None:
    """Raise ReleaseError unless pyproject.toml and Chart.yaml say the version."""
    project_version = tomllib.loads(pyproject)["project"]["version"]
    if project_version != version:
        raise ReleaseError(f"pyproject.toml says version {project_version}, not {version}. Write it there, and commit.")
    lines = {line["key"]: line["value"] for line in _CHART_LINE.finditer(chart)}
    expected = {"version": chart_version, "appVersion": version}
    if lines != expected:
        raise ReleaseError(
            f"Chart.yaml says version {lines.get('version')} and appVersion {lines.get('appVersion')}, not "
            f"{chart_version} and {version}. Write them in helm/headrace/Chart.yaml, and commit."
        )


def check_tag(checkout: Checkout, tag: str) -> bool:
    """Return whether the tag is there already. Raises ReleaseError if it names another commit."""
    listed = run_program(["git", "tag", "--list", tag], checkout.folder).strip()
    if not listed:
        return False
    commit = run_program(["git", "rev-parse", f"{tag}^{{commit}}"], checkout.folder).strip()
    if commit != checkout.commit:
        raise ReleaseError(
            f"the tag {tag} names commit {commit[:12]}, and this is {checkout.commit[:12]}. A version is released "
            "once: take the next one."
        )
    return True


def clone(checkout: Checkout, folder: Path) -> Path:
    """Clone the commit into a new folder, where nothing else lies. Returns the folder."""
    run_program(["git", "clone", "-q", "--no-checkout", checkout.folder, folder], checkout.folder)
    run_program(["git", "checkout", "-q", "--detach", checkout.commit], folder)
    return folder
