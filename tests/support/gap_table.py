"""A table with a gap, in either format, for tests of its life and of what fills it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from tests.support.backfill_gaps import skip_offsets, values
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT


@pytest.fixture
def driver(tmp_path: Path, form: str) -> Driver:
    """A table that ends at 20, a gap up to 120, and rows after it."""
    new_driver = Driver(tmp_path, form)
    new_driver.start(2)
    new_driver.carry([log(values(0, 20)), log(values(0, 20), 1)], {0: 20, 1: 20})
    skip_offsets(new_driver, 120, 60)
    new_driver.start(2)
    new_driver.carry([log(values(120, 140)), log(values(60, 80), 1)], {0: 140, 1: 80})
    return new_driver


def headrace(driver: Driver, root: Path, *arguments: str, code: int = 0) -> str:
    """Run a command over that table. Returns what it printed; `code`: with which it is to end."""
    path = root / "headrace.yaml"
    (root / "1.avsc").write_text(json.dumps(EVENT))
    path.write_text(
        json.dumps(
            {
                "kafka": {"bootstrap_servers": "127.0.0.1:1"},
                "checkpoints": str(root / "checkpoints"),
                "registry": {"files": {1: str(root / "1.avsc")}},
                "catalog": {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"},
                "pipelines": {
                    "clicks": {
                        "topics": ["clicks"],
                        "table": {"location": driver.lake, "format": driver.settings.table.format},
                        "event_time": {"field": "at", "max_age": "30000 d"},
                    }
                },
            }
        )
    )
    verb_words = 2 if arguments[0] == "gaps" else 1
    result = CliRunner().invoke(
        app, [*arguments[:verb_words], str(path), *arguments[verb_words:]], env={"COLUMNS": "160"}
    )
    output = result.output + ("" if isinstance(result.exception, SystemExit) else str(result.exception or ""))
    exit_code = getattr(result.exception, "exit_code", result.exit_code)
    assert exit_code == code, output
    return output
