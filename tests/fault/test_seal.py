"""kill -9 between any two effects of closing and sealing: a bucket is closed or sealed, and the next one goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.writer.table.log.entries import parse_commit_info
from tests.support.bucket_lake import HOUR, NOON, Lake, label
from tests.support.fault_cells import FORMATS

pytestmark = pytest.mark.slow
UNTIL = (NOON + 2 * HOUR).isoformat()


def seal(lake: Lake, fault: str = "", code: int = 0) -> str:
    command = [sys.executable, "-m", "headrace.writer.cli", "seal", str(lake.file), "--until", UNTIL, "--yes", "--json"]
    env = {**os.environ, "HEADRACE_FAULT": fault}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def seals(lake: Lake) -> list[tuple[str, int]]:
    """What the log says was sealed: bucket and version."""
    found = [parse_commit_info(actions)[1] for _, actions in lake.table.entries(-1)]
    return [
        (m["bucket"][0], m["version"]) for about in found if about.get("kind") == "seal" for m in about["manifests"]
    ]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "moment",
    ["before_close", "after_close", "before_verify", "before_seal", "after_seal", "before_manifest", "after_manifest",
     "after_success"],
)  # fmt: skip
def test_a_process_that_dies_leaves_a_bucket_closed_or_sealed(tmp_path: Path, form: str, moment: str) -> None:
    lake = Lake(tmp_path, form, {"reopen_after": "0 s", "success_file": True})
    lake.write(NOON, NOON + HOUR, rows=8)
    for late, version in ((0, 1), (3, 2)):
        if late:
            lake.write(NOON, rows=late, late=late)
        before, known = lake.rows(), seals(lake)
        again = moment in ("before_close", "after_close") and late  # they are closed: it does not come there
        seal(lake, f"{moment}:1", code=0 if again else -9)
        standing = lake.sealer().follow(write=False)
        unsealed, sealed = set(standing.unsealed.buckets), {bucket for bucket, _ in seals(lake)[len(known) :]}
        mine = {label(NOON)[0], *([] if late else label(NOON + HOUR))}
        assert {bucket for (bucket,) in unsealed} | sealed == mine
        assert not {bucket for (bucket,) in unsealed} & sealed
        assert lake.rows() == before
        document = json.loads(seal(lake))
        assert document["blocked"] == []
        found = lake.sealer().manifests
        assert found.versions(label(NOON)) == list(range(1, version + 1))
        assert found.versions(label(NOON + HOUR)) == [1]
        newest = found.newest(label(NOON))
        assert newest is not None
        assert (newest.rows, newest.late, newest.added) == (8 + late, late, late or 8)
        assert seals(lake) == sorted(set(seals(lake)), key=seals(lake).index)
        assert lake.sealer().follow().unsealed.buckets == {}
        assert lake.rows() == before
    assert {path.parent.name.rpartition("=")[2] for path in (tmp_path / "lake").rglob("_SUCCESS")} == {
        *label(NOON), *label(NOON + HOUR)
    }  # fmt: skip
