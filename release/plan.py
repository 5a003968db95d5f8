"""What a release does, decided before anything is built."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import Version

from release.changelog import UNRELEASED, Section, find_section
from release.checkout import Checkout, check_tag, check_versions, read_checkout
from release.errors import ReleaseError
from release.programs import find_helm, find_missing
from release.versions import chart_version, parse_version, tag_name

_NO_IMAGES = "the images `headrace` and `headrace-autoscaler`: it was made with IMAGES=no."


@dataclass(frozen=True)
class Plan:
    """A release that nothing forbids."""

    version: Version
    checkout: Checkout
    section: Section
    # The folder of its files.
    dist: Path
    images: bool
    # It may replace files and write a tag.
    confirmed: bool
    tag_exists: bool
    helm: Path | None

    @property
    def missing(self) -> list[str]:
        """A sentence for each thing that it leaves out."""
        return [] if self.images else [_NO_IMAGES]


def make_plan(root: Path, text: str, *, images: bool, confirmed: bool) -> Plan:
    """Check what can be checked before anything is built. `root`: of the checkout. Raises ReleaseError."""
    version = parse_version(text)
    checkout = read_checkout(root)
    section = find_section((root / "CHANGELOG.md").read_text(encoding="utf-8"), text)
    pyproject = (root / "pyproject.toml").read_text(encoding="utf-8")
    chart = (root / "helm" / "headrace" / "Chart.yaml").read_text(encoding="utf-8")
    check_versions(text, chart_version(version), pyproject, chart)
    tag_exists = check_tag(checkout, tag_name(version))
    if confirmed and section.day is None:
        raise ReleaseError(
            f"CHANGELOG.md calls {text} {UNRELEASED}, and a tag is for good. Write its day: `## {text}, "
            f"{datetime.now(UTC):%Y-%m-%d}`, and commit."
        )
    helm = find_helm()
    if sentences := find_missing(images=images, helm=helm):
        raise ReleaseError(" ".join(sentences))
    dist = root / "dist" / text
    if dist.exists() and not confirmed:
        raise ReleaseError(f"dist/{text} is there already. Remove it, or let YES=1 replace it.")
    return Plan(version, checkout, section, dist, images, confirmed, tag_exists, helm)


def describe_plan(plan: Plan) -> list[str]:
    """Return what the release does, line by line."""
    tag = tag_name(plan.version)
    images = f"build both images, prove and export them; base: {os.environ.get('BASE', 'debian:bookworm-slim')}"
    tagging = f"tag commit {plan.checkout.commit[:12]} as {tag}; it is not pushed"
    if plan.tag_exists:
        tagging = f"leave the tag {tag}, which names this commit"
    elif not plan.confirmed:
        tagging = f"write no tag: YES=1 writes {tag}"
    return [
        f"headrace {plan.version}, chart {chart_version(plan.version)}, of commit {plan.checkout.commit[:12]}, will:",
        "  build wheel, source archive and chart in two clones, and compare them",
        "  check them: twine --strict, helm lint, and the tests of the wheel in an environment without the checkout",
        f"  {images}" if plan.images else f"  leave out {_NO_IMAGES}",
        "  write SBOMs, licences, notes, provenance (unsigned) and checksums",
        f"  {'replace' if plan.dist.exists() else 'make'} dist/{plan.version}",
        f"  {tagging}",
    ]
