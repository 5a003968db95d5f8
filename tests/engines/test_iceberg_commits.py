"""One catalog commit of another Iceberg client is one change, whichever catalog has it: REST, and SQL on PostgreSQL."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import GreaterThanOrEqual, In
from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace.writer.audit.audit import audit
from headrace.writer.config.safe_names import make_identifier
from headrace.writer.core.errors import HeadraceError
from tests.servers.iceberg_rest import iceberg_rest
from tests.servers.postgres import PASSWORD, postgres
from tests.support.iceberg_clients import client_table
from tests.support.iceberg_transactions import REPLACING, Theirs, check_sound, read_rows, refusal, tag_rows
from tests.support.local_driver import Driver
from tests.support.reverted_change import revert_change
from tests.support.small_files import carry, fill_table

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
Sections = Mapping[str, Any]


@pytest.fixture(scope="module", params=["rest", "postgresql"])
def sections(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sections]:
    """The section of the configuration that names a catalog."""
    if request.param == "rest":
        with iceberg_rest(tmp_path_factory.mktemp("rest")) as url:
            yield {"catalog": {"type": "rest", "uri": url}}
    else:
        with postgres() as uri:
            yield {"catalog": {"type": "sql", "uri": uri, "password": PASSWORD}}


@pytest.fixture
def fill(sections: Sections, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], Driver]:
    """Make a table with six commits of ten rows in the catalog, in a namespace of the test's own."""

    def fill_own_table() -> Driver:
        name = f"{make_identifier(request.node.name)}.clicks"
        return fill_table(tmp_path, "iceberg", sections=dict(sections), table={"name": name})

    return fill_own_table


@pytest.mark.parametrize("theirs", REPLACING)
def test_rows_that_one_commit_replaces_stop_it_and_the_rewind_it_names_restores_them(
    fill: Callable[[], Driver], theirs: Theirs
) -> None:
    driver = fill()
    before = read_rows(driver)
    own = driver.table.snapshot().version
    theirs(client_table(driver))
    text, outcome = refusal(driver, 6)
    assert outcome == own, text
    assert not audit(driver.config, "clicks", since=None, deep=False).adds_up
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == before
    driver.start()
    carry(driver, 6)
    assert sum(read_rows(driver).values()) == 70
    check_sound(driver)


def test_deletes_of_one_commit_go_on_and_are_counted_together(fill: Callable[[], Driver]) -> None:
    driver = fill()
    own = driver.table.snapshot().version
    with client_table(driver).transaction() as change:
        change.delete(In("_offset", [3, 4]))
        change.delete(GreaterThanOrEqual("_offset", 58))
    carry(driver, 6)
    assert driver.table.snapshot().version == own + 2, "one entry of theirs, and one of ours"
    account = audit(driver.config, "clicks", since=None, deep=True)
    assert (account.adds_up, account.rows_taken) == (True, {"DELETE": 4}), account.problems


def test_two_commits_stay_two_changes(fill: Callable[[], Driver]) -> None:
    driver = fill()
    own = driver.table.snapshot().version
    table = client_table(driver)
    rows = tag_rows(table, [7, 8])
    table.delete(In("_offset", [7, 8]))
    left = read_rows(driver)
    client_table(driver).append(rows)
    text, outcome = refusal(driver, 6)
    assert outcome == own + 1
    assert "another client ran INSERT" in text
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == left
    check_sound(driver)


class WithoutMetadata(PyArrowFileIO):
    """The files that credentials reach which may read a table's data and manifests, and no metadata file of it."""

    def new_input(self, location: str) -> Any:
        if location.endswith(".metadata.json"):
            raise PermissionError(f"Cannot open file, access denied: {location}")
        return super().new_input(location)


def test_metadata_files_that_may_not_be_read_are_named(fill: Callable[[], Driver]) -> None:
    """A REST catalog reads the newest itself, so only what tells commits apart is lacking; an SQL catalog lacks all."""
    driver = fill()
    REPLACING[0](client_table(driver))
    catalog = driver.config.catalog
    assert catalog is not None
    catalog.options["py-io-impl"] = f"{__name__}.WithoutMetadata"
    fix = r".*Let the credentials of the table's files" if catalog.type == "rest" else ""
    with pytest.raises(HeadraceError, match=rf"cannot read .*access denied: .*\.metadata\.json{fix}"):
        Driver(Path(driver.lake).parents[1], configuration=driver.config).start()
