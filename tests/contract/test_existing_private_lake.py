"""Lakes whose logs have protected paths, as they were made, and lakes from before: what each goes on to protect."""

from pathlib import Path
from typing import Any

import pytest

from headrace.writer.columns.union_members import TABLE, union_members
from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError
from headrace.writer.privacy.path_policies import RELEASED, PathPolicy
from headrace.writer.privacy.policy import CLEAR, Action
from tests.fixtures.make_privacy_lake import BARE, TAGGED, row
from tests.support.fixture_lakes import FIXTURES, table_of, unpack
from tests.support.local_driver import Driver, log
from tests.support.sample_records import Schemas, value

FORMS = pytest.mark.parametrize("form", ["delta", "parquet"])


def config_of(root: Path, form: str) -> Path:
    unpack(FIXTURES / "log-1-privacy.tar.xz", root)
    return root / f"private_{form}" / "headrace.yaml"


def contacts(driver: Driver) -> list[Any]:
    table = driver.table.rows().to_table(columns=["id", "contact"]).sort_by("id")
    return table["contact"].to_pylist()


@FORMS
def test_a_lake_says_which_paths_are_protected_and_which_branch_fills_which_member(tmp_path: Path, form: str) -> None:
    snapshot = table_of(load(config_of(tmp_path, form))).snapshot()
    of_visits = snapshot.protected_paths["shop.Visit"]
    assert of_visits == {
        ("mail",): PathPolicy(Action("hash"), "tag PII"),
        ("card",): PathPolicy(Action("mask", 4), "tag CARD"),
        ("pin",): PathPolicy(Action("drop"), "tag SECRET"),
        ("remark",): PathPolicy(Action("encrypt"), "tag NOTE"),
        ("nick",): PathPolicy(CLEAR, RELEASED),
        **dict.fromkeys(
            [("contact", f"<{name}>") for name in ("int", "long", "float", "double")],
            PathPolicy(Action("hash"), "tag PII"),
        ),
    }
    branches = union_members(snapshot.columns())[TABLE]
    assert branches["contact", "shop.Place"] == "member0"
    assert branches["contact", "headrace.protected.long_text"] == "member1"
    assert branches["contact", "string"] == "member2"


@FORMS
@pytest.mark.parametrize("schemas", [{2: BARE}, {2: BARE, 1: TAGGED}], ids=["bare alone", "both"])
def test_a_lake_goes_on_as_its_log_has_it(tmp_path: Path, form: str, schemas: dict[int, Any]) -> None:
    file = config_of(tmp_path, form)
    before = contacts(Driver(file.parent, configuration=load(file), schemas=Schemas({2: BARE}, [2])))
    driver = Driver(file.parent, configuration=load(file), schemas=Schemas(schemas, list(schemas)))
    driver.start()
    driver.table.grow(list(driver.row_columns()), driver.epoch)
    driver.carry([log({offset: value(2, BARE, row(offset, f"call {offset}")) for offset in range(20, 25)})], {0: 25})
    rows = driver.table.rows().to_table().sort_by("id").slice(20).to_pylist()
    assert [row["contact"] for row in rows] == [
        {"member0": None, "member1": None, "member2": f"call {offset}"} for offset in range(20, 25)
    ]
    assert contacts(driver)[:20] == before
    for at, one in enumerate(rows, 20):
        assert not {f"{name} {at}" for name in ("mail", "card", "pin", "remark")} & {*map(str, one.values())}
        assert (one["nick"] == f"nick {at}") == (1 not in schemas), "a schema with the tag protects it again"


@FORMS
def test_a_lake_without_its_policies_is_refused(tmp_path: Path, form: str) -> None:
    file = config_of(tmp_path, form)
    text = file.read_text()
    file.write_text(text.replace("PII: hash", "OTHER: hash"))
    assert file.read_text() != text
    with pytest.raises(ConfigError, match="would be in the clear"):
        Driver(file.parent, configuration=load(file), schemas=Schemas({2: BARE}, [2])).start()


def test_a_lake_from_before_has_no_protected_path_and_names_no_branch(tmp_path: Path) -> None:
    for archive in ("log-1", "log-1-cut"):
        for name in unpack(FIXTURES / f"{archive}.tar.xz", tmp_path / archive):
            snapshot = table_of(load(tmp_path / archive / name / "headrace.yaml")).snapshot()
            assert union_members(snapshot.columns()) == {}, name
            if archive == "log-1-cut":
                assert snapshot.protected_paths == {}, name
