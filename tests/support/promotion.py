"""A shadow that takes a table's place, and goes back."""

from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from headrace.writer.audit.audit import audit
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core import fault_points
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.table.iceberg.catalog.catalog_client import client_settings
from tests.support.local_driver import Driver
from tests.support.shadow_lake import Lake, run_shadow


class Died(BaseException):
    """The process is gone, at this moment."""


def client(config: Config) -> tuple[Any, tuple[str, ...]] | None:
    """Return the catalog of the pipeline's table as another client opens it, and the namespace; None: it has none."""
    location = config.pipelines["clicks"].table.location
    catalog_table = config.catalog_place("clicks", location)
    return catalog_table and (
        load_catalog(catalog_table.catalog, **client_settings(catalog_table, location)),
        catalog_table.namespace,
    )


def table_locations(config: Config) -> dict[str, str]:
    """Return where the tables lie that a catalog knows by the pipeline's name, its shadow's or a former one."""
    if (catalog_client := client(config)) is None:
        return {}
    catalog, namespace = catalog_client
    table_names = [name for *_, name in catalog.list_tables(namespace)]
    names = [name for name in table_names if name in ("clicks", "clicks_shadow") or name.startswith("clicks_before")]
    return {name: catalog.load_table((*namespace, name)).location().removeprefix("file://") for name in names}


def reader_offsets(driver: Driver) -> list[int]:
    """Return the offsets of the rows of a table, as often as they are there; of Iceberg's, as another client reads."""
    if (catalog_client := client(driver.config)) is None:
        rows = driver.table.rows().to_table(columns=["_offset"])
    else:
        rows = (
            catalog_client[0].load_table((*catalog_client[1], "clicks")).scan(selected_fields=("_offset",)).to_arrow()
        )
    return sorted(rows["_offset"].to_pylist())


def promote(lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Promote the shadow; the first process dies at this point."""

    def die(name: str, pipeline: str = "") -> None:  # noqa: ARG001 - as `fault_points.point` has it
        if name == point:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(fault_points, "point", die)
        with pytest.raises((Died, AssertionError)):
            lake.promote("--yes")
    assert lake.promote("--yes", "--json")["done"]
    assert "is the pipeline's" in lake.promote(), "nothing is left to do"


def check_there_and_back(lake: Lake, writer: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Promote the shadow of a lake with 20 offsets, write on, go back, write on: each offset is there once."""
    first = lake.first.lake
    second = lake.place
    is_named = client(load(lake.file)) is not None
    point = "between_renames" if is_named else "after_supersede"
    lake.to(lake.shadow(), 20)
    assert table_locations(load(lake.file)) == ({"clicks": first, "clicks_shadow": second} if is_named else {})
    assert "20 offsets that both tables committed: 0 rows equal, 16 different, 1 only in the first" in lake.promote()
    promote(lake, monkeypatch, point)
    assert table_locations(load(lake.file)) == ({"clicks": second, "clicks_before_1": first} if is_named else {})
    with pytest.raises(HeadraceError, match=r"put the table at|lies at|dropped or renamed"):
        lake.to(lake.first, 25)
    new = Driver(lake.root, configuration=load(lake.write_promoted_config()))
    new.start()
    lake.to(new, 30)
    assert audit(new.config, "clicks", since=None, deep=True).adds_up
    dead = [offset for offset in range(40) if offset % 7 == 5]
    assert reader_offsets(new) == [offset for offset in range(30) if offset not in (3, *dead)]
    old = lake.file
    lake.file = lake.write_promoted_config()
    lake.other = old
    lake.place = first
    assert "The shadow is behind: clicks/0 by 10" in lake.promote("--yes", code=2)
    writer.append(30)
    run_shadow(lake)
    promote(lake, monkeypatch, point)
    assert table_locations(load(old)) == ({"clicks": first, "clicks_before_2": second} if is_named else {})
    with pytest.raises(ConfigError, match=r"put the table at|lies at"):
        Driver(lake.root, configuration=load(lake.file))
    back = Driver(lake.root, configuration=load(old))
    back.start()
    lake.to(back, 40)
    assert audit(back.config, "clicks", since=None, deep=True).adds_up
    assert reader_offsets(back) == [offset for offset in range(40) if offset not in dead]
    letters = back.side(back.dead_letters).rows().to_table(columns=["_offset"])["_offset"].to_pylist()
    assert sorted(letters) == dead
