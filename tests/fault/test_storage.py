"""Every single operation of the storage fails once: whatever it was, no record is lost and none is there twice."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import oracle
from tests.fault.cells import FORMATS, ended
from tests.fault.line import carry, judge
from tests.fault.storage import MODES, Killed, Storage
from tests.servers.objects import ObjectServer
from writer.errors import HeadraceError

WHOLE = "HEADRACE_FAULTS_WHOLE" in os.environ  # else every so many operations, a different lot in each mode
OPERATIONS = {
    "read": "read of a log entry", "mark": "look at a log entry", "list": "listing", "put_if_absent": "commit",
    "put": "put", "create": "opening a new data file", "complete": "completing a data file",
    "open": "reading a log checkpoint", "delete": "removal", "sweep": "clean-up", "copy": "copy",
    "move": "publication of a file",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on", ["local", "s3"])
@pytest.mark.parametrize("form", FORMATS)
def test_whichever_operation_of_the_storage_fails_nothing_is_lost_or_twice(
    tmp_path: Path, form: str, on: str, mode: str, request: pytest.FixtureRequest, record: Callable[..., None]
) -> None:
    server: ObjectServer | None = request.getfixturevalue("on_s3") if on == "s3" else None

    def place(name: str) -> tuple[Path, str, Callable[[], Path]]:
        root = tmp_path / name
        local = root / "lake" / "clicks"
        if server is None:
            return root, str(local), lambda: local
        bucket = server.bucket()

        def fetched() -> Path:
            server.download(f"{bucket}/lake", root / "lake")
            return local

        return root, f"{bucket}/lake/clicks", fetched

    every = Storage()
    with pytest.MonkeyPatch.context() as patch:
        every.below(patch)
        root, location, _ = place("every")
        carry(root, location, form)
    step = 1 if WHOLE else 7 if on == "local" else 29
    some = "" if step == 1 else f", every {step}th operation"
    ways: dict[str, Counter[str]] = {}
    tallies: dict[str, oracle.Tally] = {}
    for at in range(MODES.index(mode) % step, len(every.done), step):
        storage, before = Storage(at, mode), oracle.tally.copy()
        way = failed_once(*place(str(at)), form, storage)
        name = storage.done[at]
        ways.setdefault(name, Counter())[way] += 1
        tallies[name] = tallies.get(name, oracle.Tally()).plus(oracle.tally.since(before))
    for name, tally in tallies.items():
        record(
            fault=f"storage: {mode}", moment=OPERATIONS[name], on=f"in-process, {FORMATS[form]}, {on}{some}",
            times=ways[name].total(), seen_twice=tally.seen_twice, records=tally.records, lost=tally.lost,
            twice=tally.twice, ended=ended(ways[name]),
        )  # fmt: skip


def failed_once(root: Path, location: str, fetched: Callable[[], Path], form: str, storage: Storage) -> str:
    """Carry with one failure, read as a reader would, start again where it ended, and judge. Returns how it went."""
    way = "went on"
    with pytest.MonkeyPatch.context() as patch:
        storage.below(patch)
        try:
            driver = carry(root, location, form)
        except (Killed, HeadraceError, OSError) as error:
            way = "killed" if isinstance(error, Killed) else "ended"
    assert storage.at < len(storage.done), "the operation never came"
    oracle.check_rows(fetched(), "clicks")
    if way != "went on":
        driver = carry(root, location, form)
    judge(driver, fetched())
    return way
