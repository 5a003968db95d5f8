"""A pipeline with columns of Kafka's keys and headers."""

from pathlib import Path
from typing import Any

from headrace.writer.audit.audit import audit
from tests.support import oracle
from tests.support.local_driver import Driver


def start_driver(root: Path, form: str, columns: dict[str, Any] | None = None, **settings: Any) -> Driver:
    driver = Driver(root, form, columns=columns or {}, **settings)
    driver.start()
    driver.table.grow(list(driver.row_columns()), driver.epoch)
    return driver


def check_sound(driver: Driver) -> None:
    oracle.check(Path(driver.lake), "clicks")
    result = audit(driver.config, "clicks", since=None, deep=True)
    assert result.adds_up, result.problems
