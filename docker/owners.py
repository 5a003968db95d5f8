"""Fails where another package owns one of our top-level names, or where one of ours is not ours alone.

`writer` and `recovery` are plain words: somebody else's package of that name would be imported in our place.
"""

import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec

OURS = ("autoscaler", "bench", "bucketers", "recovery", "writer")


def faults() -> list[str]:
    """Return a sentence for each name that is not ours alone."""
    owners = packages_distributions()
    found = []
    for name in OURS:
        names = sorted(set(owners.get(name, [])))
        if names != ["headrace"]:
            found.append(f"{name} belongs to {', '.join(names) or 'nobody'}, and must belong to headrace alone")
        elif (spec := find_spec(name)) is None or "site-packages" not in str(spec.origin):
            found.append(f"{name} is found at {spec and spec.origin}, and must be found among the installed packages")
    return found


if __name__ == "__main__":
    wrong = faults()
    for line in wrong:
        print(f"image: {line}", file=sys.stderr)  # noqa: T201 - it is a program
    sys.exit(2 if wrong else 0)
