"""The components of what is published: from a lock, or from the inventory of an image."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from release.errors import ReleaseError

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:\[.*?\])?==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+?))?(?: \\)?$"
    r"(?P<hashes>(?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)*)",
    re.MULTILINE,
)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_LICENCE = re.compile(r"^\| (?P<name>[a-z0-9-]+) \| (?P<licence>[^|]+) \| [a-z]+ \|$", re.MULTILINE)
# What python3 of the images says; `--universal` locks have markers.
IMAGE_ENVIRONMENT = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
    "python_version": "3.11",
    "python_full_version": "3.11.2",
}


@dataclass(frozen=True)
class Component:
    """A package, as an SBOM lists it."""

    # Of purl: pypi, deb or maven.
    kind: str
    name: str
    version: str
    # Maven's group, or the distribution of a Debian package.
    namespace: str = ""
    licence: str = ""
    # Of the files that may be it: one of a jar, several of a package in a lock.
    sha256s: tuple[str, ...] = ()
    # Where it lies in an image.
    path: str = ""
    # Of its purl, such as the architecture.
    qualifiers: Mapping[str, str] = field(default_factory=dict)


def lock_components(
    lock: str, licences: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> list[Component]:
    """Return the packages of a lock with the hashes that it allows.

    `environment`: only those whose marker holds there; None: of any.
    """
    components = []
    for pin in _PIN.finditer(lock):
        marker = pin["marker"]
        if environment is not None and marker is not None and not Marker(marker).evaluate(dict(environment)):
            continue
        name = canonicalize_name(pin["name"])
        hashes = tuple(_HASH.findall(pin["hashes"]))
        components.append(Component("pypi", name, pin["version"], licence=licences.get(name, ""), sha256s=hashes))
    return components


def parse_licences(page: str) -> dict[str, str]:
    """Return the licence of each Python package by its name, from the table of docs/LICENSES.md."""
    return {row["name"]: row["licence"].strip() for row in _LICENCE.finditer(page)}


def image_components(inventory: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Component]:
    """Return the packages of an image, of all kinds, from what release/inventory.py printed."""
    return [*_python(inventory["python"]), *_debian(inventory["debian"]), *_java(inventory["java"])]


def _python(packages: Iterable[Mapping[str, Any]]) -> Iterator[Component]:
    for package in packages:
        name = canonicalize_name(package["name"])
        yield Component("pypi", name, package["version"], licence=package["licence"])


def _debian(packages: Iterable[Mapping[str, Any]]) -> Iterator[Component]:
    for package in packages:
        qualifiers = {"arch": package["architecture"], "distro": "debian-12"}
        yield Component("deb", package["name"], package["version"], "debian", qualifiers=qualifiers)


def _java(packages: Iterable[Mapping[str, Any]]) -> Iterator[Component]:
    for package in packages:
        # A purl of Maven needs a group; a jar that tells none is a file.
        yield Component(
            "maven" if package["group"] else "generic",
            package["name"],
            package["version"],
            package["group"],
            sha256s=(package["sha256"],),
            path=package["path"],
        )


def check_image_packages(image: str, components: Iterable[Component], lock: str) -> None:
    """Raise ReleaseError unless the Python packages of an image are those of its lock, and headrace."""
    locked = {(component.name, component.version) for component in lock_components(lock, {}, IMAGE_ENVIRONMENT)}
    installed = {
        (component.name, component.version)
        for component in components
        if component.kind == "pypi" and component.name != "headrace"
    }
    if installed != locked:
        extra = ", ".join(f"{name} {version}" for name, version in sorted(installed - locked)) or "nothing"
        absent = ", ".join(f"{name} {version}" for name, version in sorted(locked - installed)) or "nothing"
        raise ReleaseError(f"the image {image} has {extra} beside its lock, and lacks {absent} of it. Build it again.")


def check_image_wheel(image: str, installed: Iterable[str], shipped: Iterable[str]) -> None:
    """Raise ReleaseError unless each file of the shipped wheel lies in an image with the same hash.

    Both are lines of a RECORD: path, hash, size.
    """
    hashes = _record_hashes(installed)
    # RECORD has no hash of itself.
    files = {path: digest for path, digest in _record_hashes(shipped).items() if digest}
    different = [path for path, digest in files.items() if hashes.get(path) != digest]
    if different or not files:
        raise ReleaseError(
            f"the image {image} does not hold the wheel that is published: {', '.join(different[:5])} differs. "
            "Build it again."
        )


def _record_hashes(lines: Iterable[str]) -> dict[str, str]:
    """Return the hash of each file of a RECORD, by its path."""
    return {path: digest for path, digest, _ in csv.reader(lines)}
