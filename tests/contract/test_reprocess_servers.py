"""A reprocess of tables on S3, and of Iceberg tables there that Glue knows: moto."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.servers.objects import ObjectServer
from tests.support.effect_failures import Died
from tests.support.reprocess_lake import BERLIN, ONE, Between, check_like, delete, history, made, reprocessed, rows


def check_reprocess(root: Path, form: str, **place: Any) -> None:
    """Old rules, and a reprocess that dies in the middle and is run again, give what the new rules give at once."""
    before = made(root / "old", form, schemas=ONE, **place)
    wanted = made(root / "new", form, **BERLIN)
    for driver in (before, wanted):
        history(driver)
        delete(driver, "id IN (6, 14, 20)")
    driver = made(root / "old", form, **place, **BERLIN)
    assert rows(driver) != rows(wanted)

    def die() -> None:
        raise Died

    with pytest.raises(Died):
        reprocessed(driver, source=Between(die))
    driver = made(root / "old", form, **place, **BERLIN)
    for one in (driver, wanted):
        history(one, 60, 80)
    done = reprocessed(driver, source=Between(lambda: history(driver, 80, 100)))
    history(wanted, 80, 100)
    check_like(driver, wanted)
    assert sum(one.moved for one in done.buckets) > 20
    version = driver.table.snapshot().version
    assert [one.version for one in reprocessed(driver).buckets if one.version] == []
    assert driver.table.snapshot().version == version, "a second time changes nothing"


@pytest.mark.parametrize("kind", ["delta", "parquet", "glue"])
def test_old_rules_and_a_reprocess_give_what_the_new_rules_give_from_the_start(
    tmp_path: Path, kind: str, on_s3: ObjectServer
) -> None:
    home = on_s3.bucket()
    place: dict[str, Any] = {"table": {"location": f"{home}/clicks", "raw": {"location": f"{home}/clicks_raw"}}}
    if kind == "glue":
        options = {"glue.endpoint": on_s3.url}
        place["sections"] = {"catalog": {"type": "glue", "namespace": f"n{uuid4().hex[:12]}", "options": options}}
    check_reprocess(tmp_path, "iceberg" if kind == "glue" else kind, **place)
