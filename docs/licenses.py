"""Writes docs/LICENSES.md: each package that is installed with headrace, and its licence by its own word.

`make reference`. Names come from requirements.lock, licences from the metadata of what is installed here.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headrace.writer.clients.java_artifacts import DEMO_BUNDLES, MSK_IAM, find_bundle

_ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==\S+(?: ; (?P<marker>[^\\]+))?", re.MULTILINE)
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_python_implementation": "CPython"}
_PYTHONS = ("3.11", "3.12")  # markers of the lock look no further
_USES = {
    "run": "it runs with the writer, its supervisor and its autoscaler",
    "demo": "only `headrace demo` and `bench` use it",
    "iceberg": "the extras `iceberg` and `iceberg-postgres`; the writer's image has them",
    "protobuf": "the extra `protobuf`; the writer's image has it",
    "telemetry": "the extras `openlineage` and `opentelemetry`; the writer's image has them",
    "dev": "only the tests and checks use it",
}
_SHORT = 60  # some put the whole text where its name belongs
# What Maven Central's own pages of these modules say. Ivy fetches them; the wheels do not carry them.
_JAVA = {
    "org.apache.spark": "Apache-2.0", "org.apache.kafka": "Apache-2.0", "org.apache.commons": "Apache-2.0",
    "org.slf4j": "MIT", "io.delta": "Apache-2.0", "io.apicurio": "Apache-2.0", "org.apache.hadoop": "Apache-2.0",
    "software.amazon.msk": "Apache-2.0",
}  # fmt: skip


def text() -> str:
    """Return the whole page."""
    locked, use = _locked(), _used()
    lines = [
        "# Dependencies and their licences", "", "Written by `make reference`; do not edit. headrace itself is",
        "[Apache-2.0](../LICENSE). Versions and hashes are in `requirements.lock`; why each direct dependency is there",
        "stands beside it in `pyproject.toml`.", "", "## Python", "", "| package | licence | use |",
        "| --- | --- | --- |",
    ]  # fmt: skip
    lines += [f"| {name} | {_licence(distribution(name))} | {use.get(name, 'dev')} |" for name in sorted(locked)]
    lines += ["", *(f"{name}: {what}." for name, what in _USES.items()), "", "## Java", ""]
    lines += ["Fetched from Maven Central once, with what they need themselves.", ""]
    lines += ["| part | module | licence |", "| --- | --- | --- |"]
    for bundle in (*map(find_bundle, DEMO_BUNDLES), MSK_IAM):
        for module in bundle.modules:
            lines.append(f"| {bundle.name} | {module} | {_JAVA[module.organisation]} |")
    return "\n".join(lines) + "\n"


def _locked() -> set[str]:
    """Names of the lock that are installed on Linux by some Python that headrace runs on."""
    lock = (_ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = ((canonicalize_name(pin["name"]), pin["marker"]) for pin in _PIN.finditer(lock))
    return {name for name, marker in pins if marker is None or any(_holds(marker, p) for p in _PYTHONS)}


def _holds(marker: str, python: str) -> bool:
    return Marker(marker.strip()).evaluate(
        {**_LINUX, "python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}
    )


def _used() -> dict[str, str]:
    """What each package is there for: the first of run, demo, iceberg, protobuf, telemetry and dev that reaches it."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: Mapping[str, list[str]] = project["optional-dependencies"]
    wanted = {"run": project["dependencies"], "demo": [*extras["demo"], *extras["bench"]],
              "iceberg": [*extras["iceberg"], *extras["iceberg-postgres"]],
              "protobuf": extras["protobuf"],
              "telemetry": [*extras["openlineage"], *extras["opentelemetry"]], "dev": extras["dev"]}  # fmt: skip
    uses: dict[str, str] = {}
    for use, requirements in wanted.items():
        for name in _closure(requirements):
            uses.setdefault(name, use)
    return uses


def _closure(requirements: Iterable[str]) -> set[str]:
    packages: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(requirement) for requirement in requirements if not requirement.startswith("headrace")]
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in packages:
            continue
        packages.add(key)
        for line in distribution(requirement.name).requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ["", *requirement.extras]
            ):
                todo.append(needed)
    return {name for name, _ in packages}


def _licence(of: Distribution) -> str:
    about = of.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    classified = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or () if c.startswith("License ::")]
    named = (about.get("License") or "").strip()
    if named and len(named) < _SHORT and "\n" not in named:
        return named
    licence = ", ".join(c for c in classified if c != "OSI Approved") or _heading(of)
    assert licence, f"{about['Name']} does not say its licence"
    return licence


def _heading(of: Distribution) -> str:
    """Return the first line of the licence itself."""
    texts = [of.locate_file(f) for f in of.files or () if f.name.startswith("LICENSE")]
    lines = [line.strip() for text in texts[:1] for line in Path(str(text)).read_text(encoding="utf-8").splitlines()]
    return next(filter(None, lines), "")


if __name__ == "__main__":
    (Path(__file__).parent / "LICENSES.md").write_text(text(), encoding="utf-8")
