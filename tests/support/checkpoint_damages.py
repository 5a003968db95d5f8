"""Damages to the files of a checkpoint, by rows of the catalogue, and what was found of each when it was tried."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from headrace.writer.clients.java_artifacts import SPARK_RELEASES
from tests.fault import outcomes
from tests.support.damaged_checkpoint import PipelineCopy, move, rewrite

OTHER_ID = b'{"id":"11111111-2222-3333-4444-555555555555"}'


@dataclass(frozen=True)
class Later:
    """What a later Spark makes of a damage: all that it says, as a pattern, and how many records it reads again."""

    text: str
    twice: int = 0


@dataclass(frozen=True)
class Case:
    """One damage. `half`: when a batch is planned and not committed; else all batches are done."""

    row: str
    detail: str
    damage: Callable[[PipelineCopy], None]
    half: bool = False
    lost: int = 0  # records that plain Spark passes over in silence
    twice: int = 0  # that it reads again
    ended: int = 0  # headrace's exit code; 0: it goes on by itself
    level: str = ""  # what made it right, where it did not go on by itself
    asked: bool = False  # the doctor is asked before the start, and heeded
    # By the minor versions from which on Spark makes something else of it; None: the same as the first one again.
    later: Mapping[str, Later | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.row}-{self.detail.replace(' ', '-')}{'-planned' if self.half else ''}"

    def later_of(self, minor: str) -> Later | None:
        """Return what a version of Spark makes of it; None: what the first one does."""
        minors = list(SPARK_RELEASES)
        changes = [name for name in minors[: minors.index(minor) + 1] if name in self.later]
        return self.later[changes[-1]] if changes else None


@dataclass(frozen=True)
class Outcome:
    """What was found when a damage was tried."""

    row: str
    damage: str
    moment: str
    spark: str  # what plain Spark does
    headrace: str  # how it ends, or goes on
    found: str  # which checks of the doctor
    level: str
    records: int
    lost: int
    twice: int
    seconds: float  # from the first start after the damage until all was read
    test: str

    def put(self) -> None:
        """Write it where it is wanted."""
        outcomes.put("damages", f"{self.test} | {self.row} | {self.damage} | {self.moment}", asdict(self))


def _newest(content: bytes) -> Callable[[PipelineCopy], None]:
    return lambda pipeline: rewrite(pipeline.newest(), content)


def _cut(line: int, keep: int) -> Callable[[PipelineCopy], None]:
    """Cut the newest offsets inside a line, counted from 0."""

    def damage(pipeline: PipelineCopy) -> None:
        lines = pipeline.newest().read_text().splitlines()
        remaining = [*lines[:line], lines[line][:keep]] if keep else lines[:line]
        rewrite(pipeline.newest(), "\n".join(remaining).encode())

    return damage


def _before_newest(content: bytes | None) -> Callable[[PipelineCopy], None]:
    """Write, or remove, the offsets before the newest."""

    def damage(pipeline: PipelineCopy) -> None:
        newest = pipeline.newest()
        before = newest.with_name(str(int(newest.name) - 1))
        rewrite(before, content or b"")
        if content is None:
            before.unlink()

    return damage


def _newest_two(content: bytes) -> Callable[[PipelineCopy], None]:
    def damage(pipeline: PipelineCopy) -> None:
        _before_newest(content)(pipeline)
        _newest(content)(pipeline)

    return damage


def _without_newest(folder: str) -> Callable[[PipelineCopy], None]:
    def damage(pipeline: PipelineCopy) -> None:
        newest = pipeline.newest(folder)
        rewrite(newest, b"")
        newest.unlink()

    return damage


def _empty_folders(*folders: str) -> Callable[[PipelineCopy], None]:
    def damage(pipeline: PipelineCopy) -> None:
        for path in (path for folder in folders for path in (pipeline.checkpoint / folder).iterdir()):
            path.unlink()

    return damage


def _commits_trail(pipeline: PipelineCopy) -> None:
    for path in (pipeline.checkpoint / "commits").glob("*"):
        if int(path.name.strip(".").split(".")[0]) >= int(pipeline.newest().name) - 2:
            path.unlink()


def _metadata(content: bytes | None) -> Callable[[PipelineCopy], None]:
    def damage(pipeline: PipelineCopy) -> None:
        rewrite(pipeline.checkpoint / "metadata", content or b"")
        if content is None:
            (pipeline.checkpoint / "metadata").unlink()

    return damage


def _move_offset(by: int) -> Callable[[PipelineCopy], None]:
    return lambda pipeline: move(pipeline.newest(), pipeline.topic, by)


def _without_partition(pipeline: PipelineCopy) -> None:
    *head, last = pipeline.newest().read_text().splitlines()
    offsets = {pipeline.topic: {"0": json.loads(last)[pipeline.topic]["0"]}}
    rewrite(pipeline.newest(), "\n".join([*head, json.dumps(offsets)]).encode())


def _checksum_of_next(pipeline: PipelineCopy) -> None:
    newest = pipeline.newest()
    (newest.parent / f".{int(newest.name) + 1}.crc").write_bytes(b"crc\0 of a file that is gone")


def _directory(folder: str, beyond: int) -> Callable[[PipelineCopy], None]:
    """Put a directory in the place of a log's newest file, or of one beyond it, or of the metadata."""

    def damage(pipeline: PipelineCopy) -> None:
        newest = pipeline.newest(folder) if folder else pipeline.checkpoint / "metadata"
        path = newest.with_name(str(int(newest.name) + beyond)) if folder else newest
        rewrite(path, b"")
        path.unlink()
        path.mkdir()
        (path / "other").write_bytes(b"of another tool")

    return damage


def _deleted_by_hand(name: str) -> Callable[[PipelineCopy], None]:
    """Delete a file, and leave its checksum."""
    return lambda pipeline: (pipeline.checkpoint / name).unlink()


def _leftovers(pipeline: PipelineCopy) -> None:
    for name in ("offsets/.6.6b1f.tmp", "commits/.6.77aa.tmp"):
        (pipeline.checkpoint / name).write_bytes(b"v1")
    for name in ("0", ".0.crc"):
        (pipeline.checkpoint / "sources/0" / name).unlink()


def _cannot_replay(twice: int) -> Mapping[str, Later | None]:
    """Spark 4.1 reads a planned batch again and commits it, and ends with an error when it reports on that."""
    return {"4.1": Later(r".*NullPointerException.*|.*scala\.Option\.get\(\).*is null.*", twice), "4.2": None}


TORN = [
    ("1", "empty", _newest(b"")),
    ("2", "its version alone", _newest(b"v1")),
    ("3", "cut in its metadata", _cut(1, 40)),
    ("4", "cut before its source", _cut(2, 0)),
    ("5", "cut in its offsets", _cut(2, 12)),
    ("6b", "garbage bytes", _newest(b"\0\xff garbage")),
    ("6b", "garbage text", _newest(b"garbage\n{}\n{}")),
]
CASES = [
    *(
        Case(row, detail, damage, half=half, ended=3, level="L3")
        for half in (False, True)
        for row, detail, damage in TORN
    ),
    Case("6", "version v9", _newest(b"v9\n{}\n{}"), ended=3, level="a person, then L3"),
    Case("7", "gone", _before_newest(None), ended=3, level="L3"),
    Case("7", "gone", _before_newest(None), half=True, ended=3, level="L3"),
    Case("1", "the one before is empty", _before_newest(b""), ended=3, level="L3"),
    Case("1", "the one before is empty", _before_newest(b""), half=True, ended=3, level="L3"),
    Case("1", "the newest two are empty", _newest_two(b""), half=True, ended=3, level="L3"),
    Case("9", "gone", _without_newest("offsets"), twice=50, ended=3, level="L3"),
    Case(
        "10",
        "offsets gone",
        _empty_folders("offsets"),
        twice=50,
        ended=3,
        level="L3",
        later={
            "4.1": Later(r".*STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY.*"),
            "4.2": Later(r".*AssertionError: assertion failed"),
        },
    ),
    Case("11", "offsets and commits gone", _empty_folders("offsets", "commits"), twice=300),
    Case("12", "empty", lambda pipeline: rewrite(pipeline.newest("commits"), b""), ended=3, level="L3"),
    Case(
        "3",
        "the newest commit",
        lambda pipeline: rewrite(pipeline.newest("commits"), b'v1\n{"next'),
        ended=3,
        level="L3",
    ),
    Case("13", "newest gone", _without_newest("commits"), twice=50, later=_cannot_replay(50)),
    Case("13", "all gone", _empty_folders("commits"), twice=50, later=_cannot_replay(50)),
    Case("14", "three gone", _commits_trail, twice=50, ended=3, level="L3", later=_cannot_replay(50)),
    Case("15", "gone", _metadata(None)),
    Case("16", "empty", _metadata(b""), ended=3, level="L3"),
    Case("16", "cut", _metadata(b'{"id":"5f'), ended=3, level="L3"),
    Case("17", "of another query", _metadata(OTHER_ID)),
    Case("18", "seven up", _move_offset(7), lost=7, ended=3, level="L3"),
    Case("18-", "seven down", _move_offset(-7), twice=7),
    Case("18p", "seven less", _move_offset(-7), half=True, later=_cannot_replay(0)),
    Case("19", "partition 1 gone", _without_partition, twice=180),
    Case("20", "of the next offsets", _checksum_of_next, level="L3", asked=True),
    # The session writes past a checksum that is left; plain Spark does not.
    Case("20", "of the next offsets, after a start", _checksum_of_next),
    Case(
        "20",
        "of the metadata",
        _deleted_by_hand("metadata"),
        level="L3",
        asked=True,
        later={"4.2": Later(r".*STREAMING_CHECKPOINT_MISSING_METADATA_FILE.*")},
    ),
    Case("20", "of the beginning", _deleted_by_hand("sources/0/0"), level="L3", asked=True, later={"4.1": Later("")}),
    Case("20d", "in place of the next offsets", _directory("offsets", 1), ended=3, level="L3"),
    Case("20d", "in place of the next commit", _directory("commits", 1), half=True, ended=3, level="L3"),
    Case("20d", "in place of the newest offsets", _directory("offsets", 0), twice=50, ended=3, level="L3"),
    Case("20d", "in place of the newest commit", _directory("commits", 0), twice=50, ended=3, level="L3"),
    Case("16", "a directory", _directory("", 0), ended=3, level="L3"),
    Case("21", "drafts, no beginning", _leftovers),
    Case("34", "a thousand up", _move_offset(1000), ended=3, level="L3"),
]
