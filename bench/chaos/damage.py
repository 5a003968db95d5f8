"""Damages a real checkpoint of Spark on local disk, as disks, people and interrupted copies do."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from uuid import UUID

from headrace.bench.chaos.schedule import DAMAGES


def damage(run: Path, kind: str, rnd: Random) -> str:
    """Damage the checkpoint of a run. Returns what was done, or why there was nothing to do it to."""
    try:
        return _DAMAGE_FUNCTIONS[kind](run, rnd)
    except (OSError, IndexError, ValueError) as error:
        # Spark has not written the file yet, or is about to replace it.
        return f"nothing to damage ({type(error).__name__})"


def _batches(folder: Path) -> list[Path]:
    return sorted((f for f in folder.iterdir() if f.name.isdigit()), key=lambda f: int(f.name))


def _zero(file: Path) -> str:
    size = file.stat().st_size
    file.write_bytes(b"\0" * size)
    return f"{size} zero bytes in {file.parent.name}/{file.name}"


def _cut(file: Path, rnd: Random) -> str:
    content = file.read_bytes()
    size = rnd.randrange(len(content))
    file.write_bytes(content[:size])
    return f"{file.parent.name}/{file.name} cut to {size} bytes"


def _remove(file: Path) -> str:
    file.unlink()
    return f"{file.parent.name}/{file.name} removed"


def _all_commits(run: Path, _rnd: Random) -> str:
    files = _batches(run / "commits")
    for file in files:
        file.unlink()
    return f"{len(files)} files of commits/ removed"


def _other_query(run: Path, rnd: Random) -> str:
    (run / "metadata").write_text(json.dumps({"id": str(UUID(int=rnd.getrandbits(128)))}))
    return "metadata names another query"


def _edit(run: Path, rnd: Random) -> str:
    """Move one partition's offset, without its checksum telling: Spark 4.0 looks at none."""
    file = _batches(run / "offsets")[-1]
    *head, last = file.read_text().splitlines()
    offsets = json.loads(last)
    topic = rnd.choice(sorted(offsets))
    partition = rnd.choice(sorted(offsets[topic]))
    shift = rnd.choice([-7, -1, 1, 7, 1000])
    offsets[topic][partition] = max(0, offsets[topic][partition] + shift)
    file.write_text("\n".join([*head, json.dumps(offsets)]))
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    return f"{topic}/{partition} moved by {shift:+} in offsets/{file.name}"


def _all(run: Path, _rnd: Random) -> str:
    shutil.rmtree(run)
    return f"run {run.name} removed"


_DAMAGE_FUNCTIONS: Mapping[str, Callable[[Path, Random], str]] = dict(
    zip(
        DAMAGES,
        (
            lambda run, _: _zero(_batches(run / "offsets")[-1]),
            lambda run, rnd: _cut(_batches(run / "offsets")[-1], rnd),
            lambda run, _: _remove(_batches(run / "offsets")[-1]),
            lambda run, _: _remove(_batches(run / "offsets")[-2]),
            lambda run, _: _zero(_batches(run / "commits")[-1]),
            _all_commits,
            lambda run, _: _remove(run / "metadata"),
            _other_query,
            _edit,
            _all,
        ),
        strict=True,
    )
)
