"""Whatever becomes of a checkpoint's files, the doctor reads it, and finds what the writer refuses."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, strategies as st

from headrace.recovery.checkpoints.checks import CheckFacts, leads_to, preflight
from headrace.recovery.checkpoints.reader import read_checkpoint
from headrace.writer.core.errors import CheckpointUnusable
from headrace.writer.offsets.spark_checkpoint import Checkpoints, Resume, decide
from headrace.writer.offsets.start_decision import Refuse
from headrace.writer.storage.local import LocalStore
from tests.support.checkpoint_files import CheckpointRun

FRONTIER = {("clicks", 0): 6, ("clicks", 1): 4}
CONTENTS = [b"", b"v1", b"v2\n{}\n{}", b"\0\xff", b"v1\n{}\n{}"]
NAMES = ["metadata", "sources/0/0", "offsets/0", "offsets/1", "offsets/2", "commits/0", "commits/1", "commits/2"]


@st.composite
def damages(draw):
    """Cut, flipped, emptied, replaced or removed files."""
    name = draw(st.sampled_from(NAMES))
    kind = draw(st.sampled_from(["cut", "flip", "gone", "other", "directory", "next"]))
    return (
        name,
        kind,
        draw(st.integers(0, 400)),
        draw(st.sampled_from([b"", b"v1", b"v2\n{}\n{}", b"\0\xff", b"v1\n{}\n{}"])),
    )


def damage(path: Path, kind: str, at: int, other: bytes) -> None:
    if path.is_dir():
        return
    content = path.read_bytes() if path.exists() else b""
    match kind:
        case "directory":
            path.unlink(missing_ok=True)
            path.mkdir()
        case "next":
            path.with_name("3" if path.name.isdigit() else "state").mkdir(exist_ok=True)
        case "cut":
            path.write_bytes(content[:at])
        case "flip" if content:
            at %= len(content)
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        case "gone":
            path.unlink(missing_ok=True)
        case _:
            path.write_bytes(other)


@given(st.lists(damages(), max_size=3), st.booleans())
def test_the_doctor_finds_what_the_writer_refuses_and_never_fails_itself(found, finished):
    with tempfile.TemporaryDirectory() as root:
        run = (
            CheckpointRun(Path(root))
            .started(0, 0)
            .planned(0, 5, 4)
            .committed(0)
            .planned(1, 6, 4)
            .committed(1)
            .planned(2, 9, 9)
        )
        if finished:
            run.planned(2, 6, 4).committed(2)
        (run.path / "metadata").write_text(json.dumps({"id": "a76f7e84-306b-4262-ab49-81df29c41119"}))
        for name, kind, at, other in found:
            damage(run.path / name, kind, at, other)
        reading = read_checkpoint(LocalStore(str(run.path)))
        level = leads_to(checks := preflight(CheckFacts(reading, frontier=FRONTIER)))
        well = level is None and not any(check.halt for check in checks)
        planned, refused = None, ""
        try:
            planned = Checkpoints(root, "clicks").next_batch(1)
        except CheckpointUnusable as unusable:
            refused = str(unusable)
        assert not (refused and well), refused
        decision = decide(1, planned, FRONTIER)
        assert not (isinstance(decision, Refuse) and well), decision
        if planned is not None and isinstance(decision, Resume) and well:
            assert dict(reading.start_offsets() or {}) == dict(planned.start)
