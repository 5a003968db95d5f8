"""Lists the packages of an image. Runs inside of it, with the image's own Python and nothing else, and prints JSON.

{"python": [...], "debian": [...], "java": [...]}: each has name, version and what else its kind tells.
"""

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_HOME = Path("/opt/headrace")
_DPKG = Path("/var/lib/dpkg/status")
_POM = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")
_JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d.*)\.jar")
# Longer ones are the text of the licence, not its name.
_LICENCE_MAX = 60


def python_packages() -> Iterator[dict[str, Any]]:
    """Yield the installed distributions, each with its licence by its own word and the lines of its RECORD."""
    for package in distributions():
        record = (package.read_text("RECORD") or "").splitlines()
        yield {
            "name": package.metadata["Name"],
            "version": package.version,
            "licence": _licence(package),
            "record": record if package.metadata["Name"] == "headrace" else [],
        }


def _licence(package: Distribution) -> str:
    names = [*(package.metadata.get_all("License-Expression") or ()), *(package.metadata.get_all("License") or ())]
    for name in names:
        if name.strip() and len(name) < _LICENCE_MAX and "\n" not in name:
            return str(name.strip())
    classifiers = [line for line in package.metadata.get_all("Classifier") or () if line.startswith("License ::")]
    return ", ".join(line.rpartition(" :: ")[2] for line in classifiers)


def debian_packages(status: str) -> Iterator[dict[str, Any]]:
    """Yield the installed packages of dpkg's status file: deb822(5), a paragraph for each."""
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield {"name": fields["Package"], "version": fields["Version"], "architecture": fields["Architecture"]}


def java_packages(jars: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield each jar with its Maven coordinates. A jar that tells none is named by its file."""
    for jar in sorted(jars):
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        yield {"path": str(jar), "sha256": digest, **jar_coordinates(jar)}


def jar_coordinates(jar: Path) -> dict[str, str]:
    """Return group, name and version. Of a jar that holds several modules, the one of which its file has the name."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if _POM.fullmatch(name):
                lines = archive.read(name).decode("utf-8", "replace").splitlines()
                fields = dict(line.strip().split("=", 1) for line in lines if "=" in line and line[0] != "#")
                if jar.name.startswith(f"{fields.get('artifactId')}-{fields.get('version')}"):
                    return {"group": fields["groupId"], "name": fields["artifactId"], "version": fields["version"]}
    match = _JAR.fullmatch(jar.name)
    if match is None:
        return {"group": "", "name": jar.stem, "version": ""}
    return {"group": "", "name": match["name"], "version": match["version"]}


def main() -> None:
    """Print the packages of this image."""
    jars = [path for path in _HOME.rglob("*.jar") if path.is_file()]
    packages = {
        "python": sorted(python_packages(), key=lambda package: package["name"].lower()),
        "debian": sorted(debian_packages(_DPKG.read_text(encoding="utf-8")), key=lambda package: package["name"]),
        "java": list(java_packages(jars)),
    }
    json.dump(packages, sys.stdout)


if __name__ == "__main__":
    main()
