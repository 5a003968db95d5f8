"""The tables of a route become Iceberg tables with the log that fills them: nothing is lost or doubled."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.writer.cli.maintain.convert import run_convert
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.log.appender import TableConverted
from headrace.writer.table.log.foreign_writes import CommitFailed
from tests.support import oracle
from tests.support.effect_failures import Died, die_after
from tests.support.route_targets import PART, RouteTables
from tests.support.sample_records import NOW

EVERY = pytest.param(1, marks=pytest.mark.long)  # effect at which it dies; else one of so many


def routed(root: Path, form: str, names: tuple[str, ...] = ("a", "b")) -> RouteTables:
    return RouteTables(root, {"targets": {name: str(root / name) for name in names}}, form=form)


def alone(root: Path, log: str, form: str) -> RouteTables:
    """A route whose log has one format, and its table b another."""
    b = {"location": str(root / "b"), "format": form, "name": "shop.b"}
    if form != "iceberg":
        del b["name"]
    name = {"table": {"name": "shop.log"}} if log == "iceberg" else {}
    return RouteTables(root, {"targets": {"a": str(root / "a"), "b": b}}, form=log, **name)


def alone_in_iceberg(old: RouteTables, name: str = "shop.b") -> Config:
    config = old.config.model_dump(mode="json", exclude_unset=True)
    config["pipelines"]["p"]["route"]["targets"]["b"] |= {"format": "iceberg", "name": name}
    return Config.model_validate(config)


def counts(root: Path) -> list[int]:
    return [oracle.count(root / name) for name in ("a", "b")]


def test_the_tables_of_a_route_are_converted_with_the_log_that_fills_them(tmp_path: Path) -> None:
    old = routed(tmp_path, "delta")
    old.commit(str(tmp_path / "a"), str(tmp_path / "b"))
    old.tables.apply_side_files()
    old.commit(str(tmp_path / "a"))  # which waits
    config = old.config.model_dump(mode="json", exclude_unset=True)
    config["pipelines"]["p"]["table"] |= {"format": "iceberg", "name": "shop.log"}
    wanted = Config.model_validate(config)
    assert run_convert(wanted, "p", write=False, now=NOW).has_changes
    assert run_convert(wanted, "p", write=True, now=NOW).has_changes
    assert not run_convert(wanted, "p", write=True, now=NOW).has_changes
    with pytest.raises(TableConverted):
        routed(tmp_path, "delta")
    new = RouteTables(tmp_path, config["pipelines"]["p"]["route"], form="iceberg", table={"name": "shop.log"})
    targets = new.tables.main.snapshot().targets()
    assert {(value.format, value.table) for value in targets.values()} == {("iceberg", "shop.a"), ("iceberg", "shop.b")}
    assert counts(tmp_path) == [2, 1]
    new.commit(str(tmp_path / "a"), str(tmp_path / "b"))
    new.tables.apply_side_files()
    assert (counts(tmp_path), new.tables.behind) == ([3, 2], {})
    assert new.tables.main.snapshot().frontier(PART) == 3


@pytest.mark.parametrize("step", [6, EVERY])
def test_a_route_whose_conversion_dies_at_any_effect_is_converted_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    old = routed(tmp_path / "now", "delta")
    old.commit(str(tmp_path / "now" / "a"), str(tmp_path / "now" / "b"))  # which waits
    (tmp_path / "now").rename(tmp_path / "then")
    config = old.config.model_dump(mode="json", exclude_unset=True)
    config["pipelines"]["p"]["table"] |= {"format": "iceberg"}
    wanted, after, is_done = Config.model_validate(config), 0, False
    while not is_done:
        shutil.rmtree(tmp_path / "now", ignore_errors=True)
        shutil.copytree(tmp_path / "then", tmp_path / "now")
        catalog_client._load_catalog.cache_clear()
        at_effect = die_after(monkeypatch, after)
        next(at_effect)
        with suppress(Died):
            run_convert(wanted, "p", write=True, now=NOW)
            is_done = True
        next(at_effect)
        run_convert(wanted, "p", write=True, now=NOW)
        new = routed(tmp_path / "now", "iceberg")
        new.commit(str(tmp_path / "now" / "a"))
        new.tables.apply_side_files()
        assert (counts(tmp_path / "now"), new.tables.behind) == ([2, 1], {}), after
        after += step
    assert after > 12


@pytest.mark.parametrize("step", [2, EVERY])
@pytest.mark.parametrize("form", ["delta", "parquet"])
@pytest.mark.parametrize("log", ["iceberg", "delta"])
def test_a_target_is_converted_alone_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, form: str, step: int
) -> None:
    old = alone(tmp_path / "now", log, form)
    old.commit(str(tmp_path / "now" / "a"), str(tmp_path / "now" / "b"))
    old.tables.apply_side_files()
    old.commit(str(tmp_path / "now" / "b"))
    if form == "parquet":  # whose files that wait are hidden, and these are not
        old.tables.apply_side_files()
    (tmp_path / "now").rename(tmp_path / "then")
    wanted, after, is_done = alone_in_iceberg(old), 0, False
    while not is_done:
        shutil.rmtree(tmp_path / "now", ignore_errors=True)
        shutil.copytree(tmp_path / "then", tmp_path / "now")
        catalog_client._load_catalog.cache_clear()
        at_effect = die_after(monkeypatch, after)
        next(at_effect)
        with suppress(Died):
            assert run_convert(wanted, "p", write=True, now=NOW).has_changes
            is_done = True
        next(at_effect)
        if run_convert(wanted, "p", write=False, now=NOW).has_changes:
            with pytest.raises(ConfigError, match="has format"):
                alone(tmp_path / "now", log, "iceberg")
        run_convert(wanted, "p", write=True, now=NOW)
        assert not run_convert(wanted, "p", write=False, now=NOW).has_changes
        new = alone(tmp_path / "now", log, "iceberg")
        new.commit(str(tmp_path / "now" / "a"), str(tmp_path / "now" / "b"))
        new.tables.apply_side_files()
        assert (counts(tmp_path / "now"), new.tables.behind) == ([2, 3], {}), after
        assert {value.name: (value.format, value.table) for value in new.tables.main.snapshot().targets().values()} == {
            "a": (log, "shop.a" if log == "iceberg" else ""), "b": ("iceberg", "shop.b"),
        }  # fmt: skip
        after += step
    assert after > 4


def test_a_target_whose_storage_is_away_is_converted_once_it_is_back(tmp_path: Path) -> None:
    old, b, away = alone(tmp_path, "delta", "delta"), tmp_path / "b", tmp_path / "away"
    for places in ((str(b),), (str(tmp_path / "a"),), (str(tmp_path / "a"),)):
        old.commit(*places)
        old.tables.apply_side_files()  # the last one settles the first: nothing waits for b
    b.rename(away)
    wanted = alone_in_iceberg(old)
    with pytest.raises(CommitFailed, match=r"the table of target 'b' at .* is not there"):
        run_convert(wanted, "p", write=True, now=NOW)
    away.rename(b)
    run_convert(wanted, "p", write=True, now=NOW)
    new = alone(tmp_path, "delta", "iceberg")
    new.commit(str(b))
    new.tables.apply_side_files()
    assert (counts(tmp_path), new.tables.behind) == ([2, 2], {})


def test_a_target_that_the_catalog_knows_gets_no_second_name(tmp_path: Path) -> None:
    old = alone(tmp_path, "delta", "delta")
    old.commit(str(tmp_path / "b"))
    run_convert(alone_in_iceberg(old), "p", write=True, now=NOW)
    with pytest.raises(ConfigError, match=r"is called shop\.b, the configuration says shop\.other"):
        run_convert(alone_in_iceberg(old, "shop.other"), "p", write=True, now=NOW)
    assert {value.table for value in old.tables.main.snapshot().targets().values()} == {"", "shop.b"}
