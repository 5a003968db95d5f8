"""What the place decides in which a pipelines' file runs, so that the same file runs on a laptop and in a cluster.

$HEADRACE_PLACE names a file with the sections that have to do with the place. They lie beneath those of the pipelines'
file: what that one says counts.
"""

from typing import Any

from writer.errors import ConfigError

VARIABLE = "HEADRACE_PLACE"
SECTIONS = ("autoscale", "http", "spark", "supervisor")
NEEDS = f"it may have the sections {', '.join(SECTIONS)}"


def beneath(told: dict[str, Any], place: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what is told, and beneath it what the place says. Raises ConfigError for a section that is no place's."""
    if foreign := sorted(map(str, place.keys() - set(SECTIONS))):
        raise ConfigError(
            f"{name}, which {VARIABLE} names, has {', '.join(foreign)}; {NEEDS}. Move the rest to the pipelines' file."
        )
    return _merged(place, told)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        lower = found.get(key)
        if value is None and isinstance(lower, dict):
            continue  # a section that is named and left empty
        found[key] = _merged(lower, value) if isinstance(lower, dict) and isinstance(value, dict) else value
    return found
