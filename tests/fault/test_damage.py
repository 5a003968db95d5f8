"""Every damage of the catalogue that files can have, done to a checkpoint that real Spark wrote.

Each time: what plain Spark makes of it, what the doctor finds, how headrace ends or goes on, which rung of the ladder
makes it right, and whether each record is there once.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from recovery.classify import Damage, catalogue, classify
from recovery.facts import of_pipeline
from recovery.mend import Mended, repair
from recovery.preflight import Check, leads_to, preflight
from recovery.rungs import Rung
from tests import oracle
from tests.damaging import PIPELINE, Place, Seen, blank, die_in_a_batch, golden, plain, session
from tests.fault.damages import CASES, Case, Outcome, put_down
from writer.checkpoint import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
ROWS = {damage.row: damage for damage in catalogue()}


@dataclass(frozen=True)
class Ground:
    """Spark, and two checkpoints to damage: one with all batches done, one with a batch that was only planned."""

    spark: Any
    done: Place
    planned: Place


@pytest.fixture(scope="module")
def ground(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, registry_url: str, topic: MakeTopic
) -> Iterator[Ground]:
    root = tmp_path_factory.mktemp("damage")

    name = topic(2)
    place = blank(root / "done", bootstrap, registry_url, name)
    with session(place.config) as spark:
        golden(place, spark)
        planned = place.copy(root / "planned")
        die_in_a_batch(spark, planned)
        place.site.fill(name, 20, seed=13)  # what is still to be read
        yield Ground(spark, place, planned)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_checkpoint_costs_nothing(ground: Ground, tmp_path: Path, case: Case) -> None:
    place = (ground.planned if case.half else ground.done).copy(tmp_path / "headrace")
    case.damage(place)
    row = ROWS[case.row]
    spark = _plain_spark(ground, place.copy(tmp_path / "plain"), case, row)
    checks = preflight(of_pipeline(place.config, PIPELINE).facts)
    bad = [check for check in checks if check.ok is False]
    _check_found(case, row, bad)
    before = time.monotonic()
    code, text = place.carry(ground.spark)
    assert code == case.ended, text
    rung, ended = "", "goes on by itself"
    if code:
        ended = f"exit {code}"
        verdict = classify(text)
        assert _alike(verdict.row, row), f"{verdict.row}: {text}"
        rung = _respond(ground, place, verdict.rung, halt=verdict.halt)
    seconds = time.monotonic() - before
    assert rung == case.rung
    oracle.check_rows(place.lake, PIPELINE)
    frontier = oracle.check(place.lake, PIPELINE, place.site.ends(place.topic))
    assert preflight_is_clean(place)
    put_down(
        Outcome(
            case.row, f"{row.damage} ({case.what})", "a batch is planned" if case.half else "all batches are done",
            spark, ended, ", ".join(check.name for check in bad), rung, sum(frontier.values()), 0, 0,
            round(seconds, 1), "test_a_damaged_checkpoint_costs_nothing",
        )
    )  # fmt: skip


def preflight_is_clean(place: Place) -> bool:
    """The doctor finds nothing any more, in what headrace goes on with."""
    return leads_to(preflight(of_pipeline(place.config, PIPELINE).facts)) is None


def _plain_spark(ground: Ground, copy: Place, case: Case, row: Damage) -> str:
    """Let plain Spark go on from the damaged checkpoint. Returns what it does, in words."""
    had = oracle.offsets(copy.lake)
    seen = plain(ground.spark, copy.site.bootstrap, copy.checkpoint, topics=copy.topic)
    lost, twice = _account(had, seen, copy.site.ends(copy.topic))
    if row.symptom is not None:
        assert row.symptom.search(seen.text), seen.text
        assert twice == case.twice
        also = f", after it read {twice} records again" if twice else ""
        return f"`{seen.text.split('terminated with exception: ')[-1].splitlines()[0][:110]}`{also}"
    if case.row == "10":
        assert ROWS["9"].symptom is not None
        assert ROWS["9"].symptom.search(seen.text), seen.text
        assert twice == case.twice
        return f"reads {twice} records again, then `CONCURRENT_STREAM_LOG_UPDATE`"
    if case.row == "34":
        assert ROWS["28"].symptom is not None
        assert ROWS["28"].symptom.search(seen.text), seen.text
        return "`PARTITION_OFFSET_CHANGED`"
    assert not seen.text
    assert (lost, twice) == (case.lost, case.twice)
    said = [f"loses {lost} records"] if lost else []
    said += [f"reads {twice} records again"] if twice else []
    return "starts; " + (" and ".join(said) or "nothing lost")


def _account(had: dict[oracle.Source, list[int]], seen: Seen, ends: dict[oracle.Source, int]) -> tuple[int, int]:
    """How many records are in neither table nor stream, and how many are there once more."""
    lost = twice = 0
    for source, end in ends.items():
        times = Counter(had.get(source, ())) + seen.offsets.get(source, Counter())
        lost += sum(offset not in times for offset in range(end))
        twice += sum(count - 1 for count in times.values())
    return lost, twice


def _check_found(case: Case, row: Damage, bad: list[Check]) -> None:
    """The doctor finds what the catalogue says, and it leads to the rung that the catalogue says."""
    if case.row in ("13", "21", "18p"):
        assert not bad, "it costs nothing"
        return
    assert bad
    if case.row == "34":
        assert leads_to(bad) is Rung.NEW_RUN
        return
    assert row.finding in {check.name for check in bad}, bad
    if row.halt:
        assert any(check.halt for check in bad)
    elif case.half or row.rung is not Rung.REPAIR:
        wanted = Rung.NEW_RUN if case.rung == "L3" else row.rung
        assert leads_to(bad) == wanted, bad


def _alike(found: str, row: Damage) -> bool:
    """Texts of ours do not tell every damage apart: what they lead to is the same."""
    return found == row.row or (ROWS[found].rung, ROWS[found].halt) == (row.rung, row.halt) or row.row in ("34", "1")


def _respond(ground: Ground, place: Place, rung: Rung | None, *, halt: bool) -> str:
    """Do what the ladder does, as far up as it takes. Returns the rung that made it right."""
    said = "a person, then " if halt else ""
    if rung is Rung.REPAIR:
        asked = of_pipeline(place.config, PIPELINE)
        assert asked.run is not None
        checkpoints = Checkpoints(place.config.checkpoints, PIPELINE)
        done = repair(checkpoints, asked.run, asked.facts.frontier, datetime.now(UTC))
        if isinstance(done, Mended):
            assert all((Path(done.copy) / name).exists() for name in done.removed if ".crc" not in name)
            code, text = place.carry(ground.spark)
            assert code == 0, text
            return "L2"
        assert "torn" in done.reason or "missing" in done.reason
    code, text = place.carry(ground.spark, new_run=True)
    assert code == 0, text
    return f"{said}L3"
