"""What privacy costs: CPU time per event of a task, from values in memory to Parquet files, without and with policies.

By itself: python -m bench.privacy [EVENTS]
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.specs import batches, carried
from writer.commit.privacy import primary_keys
from writer.privacy.keyring import Keyring, KeySource, Place, write_keyring
from writer.privacy.policy import Action, Policies
from writer.privacy.protected_schema import Privacy

_ROUNDS = 3
_HASH, _ENCRYPT = Action("hash"), Action("encrypt")
POLICIES: Mapping[str, Mapping[str, Action]] = {
    "none": {},
    "drop 3 columns": dict.fromkeys(("user_id", "session_id", "city"), Action("drop")),
    "mask 1 column": {"user_id": Action("mask", 4)},
    "hash 1 column, 50 M values": {"user_id": _HASH},
    "hash 1 column, few values": {"city": _HASH},
    "hash 3 columns": dict.fromkeys(("user_id", "session_id", "city"), _HASH),
    "encrypt 1 column": {"user_id": _ENCRYPT},
}


def rounds(events: int) -> Iterator[tuple[str, float, float]]:
    """Yield for each set of policies the best of some rounds, which take turns."""
    given, found = batches(events), dict[str, list[tuple[float, float]]]()
    with tempfile.TemporaryDirectory() as folder:
        source = KeySource(Place(str(Path(folder) / "keys.json")))
        write_keyring(source, Keyring().with_new("hash").with_new("encrypt"))
        keys = primary_keys(source)
        for _ in range(_ROUNDS):
            for name, fields in POLICIES.items():
                privacy = Privacy(Policies(fields=tuple(fields.items())), keys) if fields else None
                found.setdefault(name, []).append(carried(given, ("decode",), privacy=privacy))
    for name, each in found.items():
        yield name, min(task for task, _ in each), min(step for _, step in each)


if __name__ == "__main__":
    print(
        "| policies over 200B | ns per event of decode and protect | ns per event of the task |\n| --- | ---: | ---: |"
    )
    for name, task_ns, step_ns in rounds(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000):
        print(f"| {name} | {step_ns:,.0f} | {task_ns:,.0f} |")
