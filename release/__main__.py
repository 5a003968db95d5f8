"""Makes a release: python -m release VERSION [--images no] [--yes]. It shows first what it does.

Without --yes nothing is tagged, and files of an earlier release of the same version stay.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path

from release.archives import sha256
from release.changelog import release_notes
from release.checkout import LOCKS, clone, project_address
from release.components import Component, lock_components, parse_licences
from release.distributions import Packages, build_packages
from release.errors import ReleaseError
from release.images import Image, build_images
from release.plan import Plan, describe_plan, make_plan
from release.programs import find_helm, has_docker, run_program
from release.provenance import Build, statement
from release.sbom import write_sbom
from release.versions import tag_name

ROOT = Path(__file__).parents[1]
_PROVENANCE = "provenance.unsigned.intoto.json"
_CHECKSUMS = "SHA256SUMS"


def main(arguments: Sequence[str]) -> int:
    """Make the release. Returns the exit code: 2 where it is refused."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--images", choices=("yes", "no"), default="yes")
    parser.add_argument("--yes", action="store_true")
    options = parser.parse_args(arguments)
    try:
        plan = make_plan(ROOT, options.version, images=options.images == "yes", confirmed=options.yes)
        print("\n".join(describe_plan(plan)), flush=True)
        make_release(plan)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


def make_release(plan: Plan) -> None:
    """Build and check everything, then put it into its folder, and tag. Raises ReleaseError; then no folder is made."""
    started = datetime.now(UTC)
    version = str(plan.version)
    helm = plan.helm or _build_helm()
    with tempfile.TemporaryDirectory(prefix="headrace-release-") as name:
        work = Path(name)
        dist = work / "dist"
        dist.mkdir()
        clones = [clone(plan.checkout, work / folder) for folder in ("first", "second")]
        packages = build_packages(clones, plan.version, plan.checkout.epoch_s, helm, dist)
        for file, digest in packages.hashes.items():
            print(f"release: built twice, the same: {digest}  {file}", flush=True)
        prove_wheel(packages.wheel)
        images = build_images(clones[0], version, packages.wheel, dist) if plan.images else []
        write_sboms(plan, packages, images, dist)
        shutil.copy(ROOT / "LICENSE", dist)
        shutil.copy(ROOT / "docs" / "LICENSES.md", dist)
        address = project_address(_read("pyproject.toml"))
        notes = release_notes(plan.section, version, f"{address}/blob/{tag_name(plan.version)}", plan.missing)
        (dist / "NOTES.md").write_text(notes, encoding="utf-8")
        locks = {path: sha256(ROOT / path) for path in LOCKS}
        build = Build(
            version,
            address,
            plan.checkout.commit,
            locks,
            tool_versions(helm, images=plan.images),
            plan.missing,
            started,
            datetime.now(UTC),
        )
        write_provenance(build, dist)
        _move(dist, plan.dist)
    if plan.confirmed and not plan.tag_exists:
        tag = tag_name(plan.version)
        run_program(["git", "tag", "-a", tag, "-m", f"headrace {version}", plan.checkout.commit], ROOT)
        print(f"release: tagged {tag}. To publish it: git push origin {tag}")
    print(f"release: {plan.dist.relative_to(ROOT)} is complete, but for {' '.join(plan.missing) or 'nothing'}")


def _build_helm() -> Path:
    run_program(["bash", "tests/engines/kubernetes.sh", "helm"], ROOT, shown=True)
    helm = find_helm()
    assert helm is not None, "kubernetes.sh fails where it builds none"
    return helm


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prove_wheel(wheel: Path) -> None:
    """Run the tests of the wheel on this very file, in environments outside of the checkout. Raises ReleaseError."""
    pytest = ROOT / ".venv" / "bin" / "pytest"
    run_program([pytest, "-q", "tests/contract/test_wheel.py"], ROOT, {"HEADRACE_WHEEL": str(wheel)}, shown=True)


def write_sboms(plan: Plan, packages: Packages, images: Sequence[Image], dist: Path) -> None:
    """Write the document of the wheel, with all that a configuration may ask for, and of each image."""
    version = str(plan.version)
    licences = parse_licences(_read("docs/LICENSES.md"))
    hashes = (packages.hashes[packages.wheel.name],)
    wheel = Component("pypi", "headrace", version, licence="Apache-2.0", sha256s=hashes)
    _write_sbom(plan, wheel, lock_components(_read("docker/writer.lock"), licences), dist / packages.wheel.name)
    for image in images:
        hashes = (sha256(image.archive),)
        subject = Component("generic", image.name, version, licence="Apache-2.0", sha256s=hashes)
        _write_sbom(plan, subject, image.components, image.archive)


def _write_sbom(plan: Plan, subject: Component, components: Sequence[Component], path: Path) -> None:
    """Write the document of a file beside it."""
    document = path.with_name(f"{path.name}.cdx.json")
    document.write_text(write_sbom(subject, components, plan.checkout.epoch_s), encoding="utf-8")
    print(f"release: {document.name}: {describe_components(components)}")


def describe_components(components: Sequence[Component]) -> str:
    """Return how many components there are of each kind."""
    kinds = [component.kind for component in components]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def tool_versions(helm: Path, *, images: bool) -> dict[str, str]:
    """Return the versions of the programs that built the release."""
    builder = ["docker" if has_docker() else "buildah", "--version"]
    return {
        "python": sys.version.split()[0],
        **{package: installed(package) for package in ("build", "setuptools", "twine", "cyclonedx-python-lib")},
        "helm": run_program([helm, "version", "--template", "{{.Version}}"], ROOT).strip(),
        **({builder[0]: run_program(builder, ROOT).strip()} if images else {}),
    }


def write_provenance(build: Build, dist: Path) -> None:
    """Write the statement about all files, and then the checksums of all files."""
    statement_text = json.dumps(statement(build, hash_files(dist)), indent=2)
    (dist / _PROVENANCE).write_text(f"{statement_text}\n", encoding="utf-8")
    lines = [f"{digest}  {name}\n" for name, digest in sorted(hash_files(dist).items())]
    (dist / _CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def hash_files(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of each file of a folder, by its name."""
    return {path.name: sha256(path) for path in folder.iterdir()}


def _move(dist: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(exist_ok=True)
    shutil.move(dist, target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
