"""Tables of a route that are behind, or left the configuration: what waits, what is bounded, what is refused."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.recovery.rewind.execution import RewindExecution
from headrace.writer.clients.kafka import Topic
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError, LimitReached
from headrace.writer.maintenance.vacuum import find_unneeded, remove
from tests.support.route_targets import RouteTables, files, put_back, refusing_tables, row, take_away


class Cluster:
    """Kafka, as it says that it holds topic `t`."""

    def __init__(self, end: int) -> None:
        self.end = end

    def topics(self, names: Sequence[str]) -> Mapping[str, Topic]:
        return {name: Topic(name, "id", 1) for name in names}

    def earliest(self, sources: Sequence[Any]) -> Mapping[Any, int]:
        return dict.fromkeys(sources, 0)

    def latest(self, sources: Sequence[Any]) -> Mapping[Any, int]:
        return dict.fromkeys(sources, self.end)


def test_entries_that_wait_longer_than_max_age_end_the_pipeline_or_make_dead_letters(tmp_path: Path) -> None:
    """The age is that of the entry, whichever process asks."""
    place = str(tmp_path / "a")
    section = {"targets": {"a": place}, "held": {"max_age": "2 h"}}
    one = RouteTables(tmp_path, section)
    take_away(place)
    one.hold({place: 1}, age=timedelta(hours=1))
    assert not RouteTables(tmp_path, section).targets.route().shut
    with pytest.raises(LimitReached, match=r"'a' .* refuses, and .* wait for it, the first for (1 h|36.. s)"):
        RouteTables(tmp_path, {**section, "held": {"max_age": "30 min"}}).targets.route()
    shut = RouteTables(tmp_path, {**section, "held": {"max_age": "30 min", "on_limit": "dead_letters"}})
    assert shut.targets.route().shut == {"a"}
    assert "too much waits for it" in shut.targets.route().reason("a")
    put_back(place)
    again = RouteTables(tmp_path, section)
    assert (again.tables.behind, again.targets.route().shut, files(place)) == ({}, frozenset(), 1)


@pytest.mark.usefixtures("scratch")
def test_a_vacuum_keeps_what_a_table_needs_that_left_the_configuration_and_removes_its_orphans(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    one.commit(a, b)
    one.tables.apply_side_files()
    one.commit(a, b)  # which waits
    orphan = row(a, 99)
    soon = datetime.now(UTC) + timedelta(days=99)
    settings = one.config.model_dump(mode="json", exclude_unset=True)
    del settings["pipelines"]["p"]["route"]["targets"]["a"]
    waste = find_unneeded(Config.model_validate(settings), "p", None, soon)
    assert [found.path for one in waste for found in one.waste if found.path.endswith(".parquet")] == [orphan.path]
    remove(waste)
    RouteTables(tmp_path, {"targets": {"b": b}})
    assert (files(a), files(b)) == (2, 2)
    assert sorted(path.name for path in Path(a).glob("*.parquet")) == sorted(
        Path(path).name for path in DeltaTable(a).file_uris()
    )


def test_a_rewind_is_refused_while_a_table_is_behind(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    version = one.tables.main.snapshot().version
    one.commit(a, b)
    one.tables.apply_side_files()
    one.commit(b)
    one.commit(a, b)
    rewinding = RewindExecution(one.config, "p", Cluster(9))  # type: ignore[arg-type]
    shown = rewinding.preview(version)
    take_away(a)
    newest = one.tables.main.snapshot().version
    with pytest.raises(HeadraceError, match="do not take what is committed; nothing was rewound"):
        rewinding.write(shown, datetime.now(UTC))
    assert one.tables.main.snapshot().version == newest
    assert files(b) == 3


def test_a_rewind_counts_a_table_that_lies_where_late_rows_of_the_log_would_once(tmp_path: Path) -> None:
    place = str(tmp_path / "log_late")
    one = RouteTables(tmp_path, {"targets": {"a": place}})
    version = one.tables.main.snapshot().version
    one.commit(place)
    one.tables.apply_side_files()
    (file,) = DeltaTable(place).file_uris()
    pq.write_table(
        pa.table({"_topic": ["t"], "_incarnation": pa.array([1], pa.int32()), "_partition": pa.array([0], pa.int32()),
                  "_offset": [0]}), file,
    )  # fmt: skip
    rewinding = RewindExecution(one.config, "p", Cluster(9))  # type: ignore[arg-type]
    shown = rewinding.preview(version)
    assert (shown.rows, shown.late) == (1, 0)


def test_a_table_of_late_rows_that_was_removed_is_waited_for_as_its_target_is(tmp_path: Path) -> None:
    place, late = str(tmp_path / "a"), str(tmp_path / "a_late")
    route = {"targets": {"a": place}}
    one = RouteTables(tmp_path, route, seal={"late": "late_table"})
    (record,) = one.tables.main.snapshot().targets().values()
    assert (record.late, record.late_id) == (late, one.tables.side(late).snapshot().table_id)
    one.commit(late)
    one.tables.apply_side_files()
    Path(late).rename(tmp_path / "away")
    two = RouteTables(tmp_path, route, seal={"late": "late_table"})
    assert late in refusing_tables(two)["a"]
    assert not Path(late).exists(), "none is made in its place"
    (tmp_path / "away").rename(late)
    three = RouteTables(tmp_path, route, seal={"late": "late_table"})
    assert (refusing_tables(three), files(late)) == ({}, 1)
