"""Which packages an image holds: of requirements.lock, which is for developers too, what the images need.

python docker/locks.py    writes docker/writer.lock, docker/autoscaler.lock and docker/build.lock
"""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
SPARK = frozenset({"pyspark", "py4j", "pandas"})  # what the autoscaler's image leaves out
EXTRAS = ("iceberg", "iceberg-postgres", "openlineage", "opentelemetry")  # what a configuration may ask for
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def texts() -> dict[str, str]:
    """Return each file's text, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = closure(project["dependencies"])
    extras = [text for name in EXTRAS for text in project["optional-dependencies"][name]]
    beside = [text for text in extras if not text.startswith(f"{project['name']}[")]  # an extra of EXTRAS itself
    return {
        "writer.lock": _text(needed | closure(beside)),
        "autoscaler.lock": _text(needed - SPARK),
        "build.lock": _text({"setuptools"}),
    }


def closure(wanted: Iterable[str]) -> set[str]:
    """Return the names of all packages that these requirements bring on this machine."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [Requirement(text) for text in wanted]
    seen: set[str] = set()
    while waiting:
        one = waiting.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        found.add(normal(one.name))
        for text in _requires(one.name):
            next_ = Requirement(text)
            extras = one.extras or {""}
            if next_.marker is None or any(next_.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                waiting.append(next_)
    return found


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError as error:
        raise SystemExit(f"{name} is not installed here. Run `make setup` before.") from error


def normal(name: str) -> str:
    """Write a name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(names: set[str]) -> str:
    blocks: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            found = _NAME.match(line)
            assert found is not None
            current = blocks.setdefault(normal(found[0]), [])
        current.append(line)
    missing = names - set(blocks)
    if missing:
        raise SystemExit(f"requirements.lock does not hold {', '.join(sorted(missing))}. Run `make lock` before.")
    lines = [line for name in sorted(names) for line in blocks[name]]
    return "# From requirements.lock by docker/locks.py.\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, text in texts().items():
        (HERE / name).write_text(text)
