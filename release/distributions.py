"""Wheel, source archive and chart: built in two clones, compared, and checked."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from release.archives import compare_builds, rewrite_tar
from release.errors import ReleaseError
from release.programs import run_program
from release.versions import chart_version

# What must not show in what is built: the two builds differ in it.
_SURROUNDINGS = ({"PYTHONHASHSEED": "1", "TZ": "UTC"}, {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata"})
_CHART = Path("helm", "headrace")


@dataclass(frozen=True)
class Packages:
    """What is installed, each built twice with the same hash."""

    wheel: Path
    sdist: Path
    chart: Path
    # SHA-256 of each, by its name.
    hashes: dict[str, str]


def build_packages(clones: Sequence[Path], version: Version, epoch_s: int, helm: Path, dist: Path) -> Packages:
    """Build wheel, source archive and chart in each clone, and put the first ones into `dist`.

    Raises ReleaseError if two builds differ, or a check fails.
    """
    builds = []
    for folder, surroundings in zip(clones, _SURROUNDINGS, strict=True):
        out = folder.parent / f"{folder.name}-built"
        out.mkdir()
        builds.append(_build_once(folder, out, surroundings, version, epoch_s, helm))
    hashes = compare_builds(*builds)
    paths = [Path(shutil.copy(path, dist / path.name)) for path in builds[0]]
    wheel, sdist, chart = paths
    run_program([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], dist)
    check_chart(chart, helm, clones[0])
    return Packages(wheel, sdist, chart, hashes)


def _build_once(
    folder: Path, out: Path, surroundings: dict[str, str], version: Version, epoch_s: int, helm: Path
) -> tuple[Path, Path, Path]:
    """Build all three. The wheel is built of the source archive, so that this is complete."""
    variables = {**surroundings, "SOURCE_DATE_EPOCH": str(epoch_s)}
    run_program([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder], out, variables)
    versions = ("--version", chart_version(version), "--app-version", str(version))
    run_program([helm, "package", folder / _CHART, *versions, "-d", out], out, variables)
    wheel = _only(out, f"headrace-{version}-*.whl")
    sdist = _only(out, f"headrace-{version}.tar.gz")
    package = _only(out, f"headrace-{chart_version(version)}.tgz")
    rewrite_tar(sdist, epoch_s)
    rewrite_tar(package, epoch_s)
    return wheel, sdist, package


def _only(folder: Path, pattern: str) -> Path:
    paths = list(folder.glob(pattern))
    if len(paths) != 1:
        names = sorted(path.name for path in folder.iterdir())
        raise ReleaseError(f"the build made {', '.join(names)}, and not one {pattern}")
    return paths[0]


def check_chart(package: Path, helm: Path, folder: Path) -> None:
    """Lint the packaged chart with the values of each example. Raises ReleaseError."""
    for values in sorted((folder / _CHART / "ci").glob("*.yaml")):
        run_program([helm, "lint", "--strict", package, "-f", values], folder)
