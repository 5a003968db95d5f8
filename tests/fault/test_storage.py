"""Every single operation of the storage fails once: whatever it was, no record is lost and none is there twice."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.writer.core.errors import HeadraceError
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from tests.fault.outcomes import WANTED as WHOLE
from tests.servers.objects import ObjectServer
from tests.support import oracle
from tests.support.failing_storage import LOST, MODES, Killed, Storage
from tests.support.fault_cells import FORMATS, describe_ends
from tests.support.fixed_log_writer import TableLocation, carry, empty_locations, judge
from tests.support.local_driver import Driver
from tests.support.sample_records import NOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]
STEPS = {"local": 1, "s3": 5} if WHOLE else {"local": 7, "s3": 29}  # every so many, a different lot in each mode
LOOKS = ("read", "mark")  # change nothing, and are most of the operations: the whole matrix takes steps in these alone
OPERATIONS = {
    "read": "read of a log entry", "mark": "look at a log entry", "list": "listing", "put_if_absent": "commit",
    "put": "put", "create": "opening a new data file", "complete": "completing a data file",
    "open": "reading a file", "delete": "removal", "sweep": "clean-up", "copy": "copy",
    "move": "publication of a file",
}  # fmt: skip
Life = Callable[[TableLocation, Storage], None]  # carries, with the storage below its stores
Check = Callable[[Driver, TableLocation], None]  # what must be so at the end


@pytest.fixture
def server(storage_kind: str, request: pytest.FixtureRequest) -> ObjectServer | None:
    """What the tables lie on; None: the local disk."""
    return request.getfixturevalue("on_s3") if storage_kind == "s3" else None


# An Iceberg table's own metadata does not pass through a store; tests/contract/test_iceberg_faults.py fails each of its
# effects. What does pass is the same wherever the table lies.
each_table = pytest.mark.parametrize(
    ("storage_kind", "form"),
    [(kind, form) for kind in ("local", "s3") for form in FORMATS if (kind, form) != ("s3", "iceberg")],
)


@pytest.mark.parametrize("mode", MODES)
@each_table
def test_whichever_operation_of_the_storage_fails_nothing_is_lost_or_twice(
    tmp_path: Path, form: str, server: ObjectServer | None, mode: str, record: Callable[..., None]
) -> None:
    def life(location: TableLocation, storage: Storage) -> None:
        with pytest.MonkeyPatch.context() as patch:
            storage.below(patch)
            carry(location.root, location.location, form)

    fail_each_once(tmp_path, form, server, mode, record, life)


@pytest.mark.parametrize("mode", MODES)
@each_table
def test_whichever_operation_of_a_replay_fails_nothing_is_lost_or_twice(
    tmp_path: Path, form: str, server: ObjectServer | None, mode: str, record: Callable[..., None]
) -> None:
    """The letters of a batch whose clock was wrong become rows; others, of the same files, stay."""

    def replay(driver: Driver) -> None:
        DeadLetterReplay("clicks", driver.config, driver.schemas).run(Selection(outcome="quarantined"), NOW)

    def life(location: TableLocation, storage: Storage) -> None:
        driver = carry(location.root, location.location, form, clock=[NOW, NOW - timedelta(days=400), NOW])
        with pytest.MonkeyPatch.context() as patch:
            storage.below(patch)
            replay(driver)

    def again(driver: Driver, location: TableLocation) -> None:
        replay(driver)
        dead_letters = oracle.rows(
            location.download().with_name("clicks_dead_letters"), "outcome, count(*)", "GROUP BY ALL"
        )
        assert dead_letters == [("dead_letter", 8)]

    always = ("put_if_absent",) if mode == LOST else ()  # what is left of a file stays while an entry may name it
    fail_each_once(tmp_path, form, server, mode, record, life, again, "replay: ", always)


def fail_each_once(
    root: Path, form: str, server: ObjectServer | None, mode: str, record: Callable[..., None], life: Life,
    check: Check = lambda *_: None, what: str = "", always: Sequence[str] = (),
) -> None:  # fmt: skip
    """Live it once for each operation of the storage, which then fails; then start again, and judge.

    Of most operations, but not of those that `always` names, a step may choose some.
    """

    def is_chosen_by_step(operation: str) -> bool:
        return operation in LOOKS if WHOLE else operation not in always

    storage_kind = "local" if server is None else "s3"
    all_operations = Storage()
    locations = empty_locations(root, server)
    step_size = STEPS["s3" if form == "iceberg" else storage_kind]  # a life of such a table takes as long
    life(next(locations), all_operations)
    ways: dict[str, Counter[str]] = {}
    tallies: dict[str, oracle.Tally] = {}
    numbers = [index for index, name in enumerate(all_operations.done) if is_chosen_by_step(name)]
    left_out = {*numbers} - {*numbers[MODES.index(mode) % step_size :: step_size]}
    for number in sorted({*range(len(all_operations.done))} - left_out):
        storage, before = Storage(number, mode), oracle.tally.copy()
        way = fail_once(next(locations), form, storage, life, check)
        name = storage.done[number]
        ways.setdefault(name, Counter())[way] += 1
        tallies[name] = tallies.get(name, oracle.Tally()).plus(oracle.tally.since(before))
    for name, tally in tallies.items():
        step = f", every {step_size}th" if is_chosen_by_step(name) and step_size > 1 else ""
        record(
            fault=f"storage: {mode}", moment=what + OPERATIONS[name],
            on=f"in-process, {FORMATS[form]}, {storage_kind}{step}",
            times=ways[name].total(), seen_twice=tally.seen_twice, records=tally.records, lost=tally.lost,
            twice=tally.twice, ended=describe_ends(ways[name]),
        )  # fmt: skip


def fail_once(location: TableLocation, form: str, storage: Storage, life: Life, check: Check) -> str:
    """Live with one failure, read as a reader would, start again, and judge. Returns how it went."""
    way = "went on"
    try:
        life(location, storage)
    except (Killed, HeadraceError, OSError) as error:
        way = "killed" if isinstance(error, Killed) else "ended"
    assert storage.at < len(storage.done), "the operation never came"
    oracle.check_rows(location.download(), "clicks")
    driver = carry(location.root, location.location, form)
    check(driver, location)
    judge(driver, location.download())
    return way
