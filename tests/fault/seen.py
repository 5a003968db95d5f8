"""What long runs found that docs/RECOVERY.md tells: the seconds until a rung worked, and the counts of runs of chaos.

A run writes it to the file that HEADRACE_SEEN names; the page is made of the committed one.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

COMMITTED = Path(__file__).with_name("seen.json")
CHAOS = ("format", "minutes", "produced", "held", "taken", "died", "lost", "twice", "unknown")
Seen = dict[str, dict[str, dict[str, Any]]]  # section → what was tried → what was found


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes of the run from writing to a file meanwhile."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def put_down(section: Literal["rungs", "chaos"], tried: str, found: Mapping[str, Any]) -> None:
    """Write it where it is wanted, in the place of what was found before."""
    wanted = os.environ.get("HEADRACE_SEEN")
    if not wanted:
        return
    path = Path(wanted)
    with alone(path):
        seen = read(path)
        seen.setdefault(section, {})[tried] = dict(found)
        path.write_text(json.dumps(seen, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Seen:
    """Read what `put_down` wrote."""
    found: Seen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found
