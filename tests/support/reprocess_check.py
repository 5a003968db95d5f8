"""A reprocess of a table on servers, and what must be true afterwards."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.effect_failures import Died
from tests.support.reprocess_lake import (
    BERLIN,
    ONE,
    Between,
    check_equal,
    delete,
    rows,
    run_reprocess,
    start_writer,
    write_history,
)


def check_reprocess(root: Path, form: str, **table: Any) -> None:
    """Old rules, and a reprocess that dies in the middle and is run again, give what the new rules give at once."""
    before = start_writer(root / "old", form, schemas=ONE, **table)
    wanted = start_writer(root / "new", form, **BERLIN)
    for driver in (before, wanted):
        write_history(driver)
        delete(driver, "id IN (6, 14, 20)")
    driver = start_writer(root / "old", form, **table, **BERLIN)
    assert rows(driver) != rows(wanted)

    def die() -> None:
        raise Died

    with pytest.raises(Died):
        run_reprocess(driver, source=Between(die))
    driver = start_writer(root / "old", form, **table, **BERLIN)
    for checked_driver in (driver, wanted):
        write_history(checked_driver, 60, 80)
    done = run_reprocess(driver, source=Between(lambda: write_history(driver, 80, 100)))
    write_history(wanted, 80, 100)
    check_equal(driver, wanted)
    assert sum(checked_driver.moved for checked_driver in done.buckets) > 20
    version = driver.table.snapshot().version
    assert [checked_driver.version for checked_driver in run_reprocess(driver).buckets if checked_driver.version] == []
    assert driver.table.snapshot().version == version, "a second time changes nothing"
