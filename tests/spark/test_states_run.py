"""Real pipelines in three states that a person meets at night, read on every screen and counted without headrace.

One waits for a schema that nobody knows, one has a gap that Kafka still holds, and another client changed the table of
the third. One driver runs them, and a supervisor is its parent.
"""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.writer.core.text import instant
from tests.support import oracle, screens
from tests.support.read_commands import headrace
from tests.support.screens import Figures
from tests.support.supervisor_process import Supervised
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
Start = Callable[..., Supervised]
HELD, GAP, HALTED = "held", "gap", "halted"
NAMES = (HELD, GAP, HALTED)
# Records before the states, those that are skipped, and those that come while they last.
FIRST, SKIPPED, MORE = 200, 300, 40
UNKNOWN_ID = 987_654
LAG_INTERVAL_S = 0.5
WAITS = f"waits for schema id {UNKNOWN_ID} until "
OPEN_GAP = f"1 gap open, {SKIPPED} offsets, Kafka holds them, `headrace backfill` brings them"


class Pipelines:
    """Three pipelines, and what Kafka, DuckDB and delta-rs say of them."""

    def __init__(self, site: Site, topic: MakeTopic) -> None:
        self.site = site
        self.topics = {name: topic(1, prefix=name) for name in NAMES}
        self.tables = {name: self._add(name) for name in NAMES}
        site.overrides = {"kafka": {"bootstrap_servers": site.bootstrap, "lag_interval": f"{LAG_INTERVAL_S:g} s"}}
        self.config = str(site.config)

    def _add(self, name: str) -> Path:
        return self.site.pipeline(
            name, [self.topics[name]], commit={"max_delay": "1 s"}, schemas={"unknown_id_timeout": "300 s"}
        )

    def fill(self, name: str, count: int, seed: int) -> None:
        """Produce events of a pipeline."""
        self.site.fill(self.topics[name], count, seed=seed)

    def send_unknown(self, name: str) -> None:
        """Produce a record whose schema nobody registered."""
        self.site.send(self.topics[name], [(b"key", struct.pack(">bI", 0, UNKNOWN_ID) + b"whatever")])

    def append_as_stranger(self, name: str) -> None:
        """Write a row into the table as another program does."""
        table = DeltaTable(str(self.tables[name]))
        write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")

    def counts(self, name: str, *, gaps: int = 0, gap_offsets: int = 0) -> Figures:
        """Count what each screen must show: with DuckDB over the files, and by the ends of Kafka's logs."""
        (end,) = self.site.ends(self.topics[name]).values()
        table = self.tables[name]
        dead_letters = table.with_name(f"{name}_dead_letters")
        ((last_offset,),) = oracle.rows(table, "max(_offset)")
        return Figures(
            lag_offsets=end - int(str(last_offset)) - 1,
            table_rows=oracle.count(table),
            dead_letters=oracle.count(dead_letters) if dead_letters.exists() else 0,
            gaps=gaps,
            gap_offsets=gap_offsets,
        )

    def committed(self, name: str) -> int:
        """Count the rows of the newest batch by the statistics in the table's log."""
        log = oracle.replay(self.tables[name])
        batches = [facts for facts in log.commits if facts["kind"] == "batch"]
        return int(str(batches[-1]["rows"]))

    def document(self, code: int) -> dict[str, Any]:
        """Ask `headrace status --json`."""
        pipelines: dict[str, Any] = json.loads(headrace("status", self.config, "--json", code=code))["pipelines"]
        return pipelines


@pytest.fixture
def pipelines(site: Site, topic: MakeTopic) -> Pipelines:
    """Three pipelines that have committed once each. Of one, what came since is skipped."""
    pipelines = Pipelines(site, topic)
    for name in NAMES:
        pipelines.fill(name, FIRST, seed=7)
    site.once()
    pipelines.fill(GAP, SKIPPED, seed=8)
    headrace("gaps", "open", pipelines.config, "--pipeline", GAP, "--reason", "a test", "--yes")
    return pipelines


def test_three_states_show_the_same_figures_on_every_screen(pipelines: Pipelines, start: Start) -> None:
    supervised = start()
    announcements = [pipelines.site.root / "checkpoints" / name / "driver.json" for name in NAMES]
    supervised.until(lambda: all(path.exists() for path in announcements))
    url = json.loads(announcements[0].read_text())["url"]
    pipelines.append_as_stranger(HALTED)
    pipelines.fill(HALTED, MORE, seed=9)
    pipelines.fill(GAP, MORE, seed=9)
    pipelines.send_unknown(HELD)
    supervised.until(lambda: screens.driver_pipelines(url)[HELD]["registry_wait"])
    supervised.until(lambda: screens.driver_pipelines(url)[HALTED]["halted"])
    supervised.until(lambda: oracle.count(pipelines.tables[GAP]) == FIRST + MORE)

    expected = {
        HELD: pipelines.counts(HELD),
        GAP: pipelines.counts(GAP, gaps=1, gap_offsets=SKIPPED),
        HALTED: pipelines.counts(HALTED),
    }
    assert expected == {
        HELD: Figures(lag_offsets=1, table_rows=FIRST, dead_letters=0, gaps=0, gap_offsets=0),
        GAP: Figures(lag_offsets=0, table_rows=FIRST + MORE, dead_letters=0, gaps=1, gap_offsets=SKIPPED),
        HALTED: Figures(lag_offsets=MORE, table_rows=FIRST + 1, dead_letters=0, gaps=0, gap_offsets=0),
    }
    document = pipelines.document(code=1)
    assert {name: screens.figures_of_document(document[name]) for name in NAMES} == expected
    check_terminals(pipelines, expected)
    check_driver(url, expected)
    check_words(pipelines, supervised, url, document)
    explained = json.loads(headrace("explain", pipelines.config, "--json"))["pipelines"]
    assert {name: explained[name]["records"]["rows"] for name in NAMES} == {
        name: pipelines.committed(name) for name in NAMES
    }

    headrace("backfill", pipelines.config, "--pipeline", GAP, "--yes")
    filled = pipelines.counts(GAP)
    assert (filled.table_rows, filled.gaps) == (FIRST + SKIPPED + MORE, 0)
    shown = screens.blocks(screens.run_in_terminal(80, "status", pipelines.config, "--pipeline", GAP))[GAP]
    assert "gaps" not in shown, "it is gone at once"
    assert screens.figures_of_block(shown) == filled
    assert screens.figures_of_metrics(screens.scrape(url)[GAP], 3 * LAG_INTERVAL_S) == filled
    assert screens.figures_of_document(screens.driver_pipelines(url)[GAP]) == filled

    assert supervised.stop() == 2, "the exit code of what was given up"
    without_driver = pipelines.document(code=1)
    assert {name: screens.figures_of_document(without_driver[name]) for name in NAMES} == {**expected, GAP: filled}
    assert without_driver[HALTED]["halted"] == document[HALTED]["halted"], "of the supervisor's record, as before"


def check_terminals(pipelines: Pipelines, expected: dict[str, Figures]) -> None:
    """Assert that the lines of `headrace status` show these figures, at two widths and in a pipe."""
    texts = [screens.run_in_terminal(width, "status", pipelines.config) for width in (80, 120)]
    assert all(max(map(len, text.splitlines())) <= width for text, width in zip(texts, (80, 120), strict=True))
    for text in (*texts, headrace("status", pipelines.config, code=1)):
        lines = screens.blocks(text)
        assert {name: screens.figures_of_block(lines[name]) for name in NAMES} == expected
        assert WAITS in lines[HELD]["registry"]
        assert "caught up" not in lines[HELD]["flow"], "a batch that is held catches up with nothing"
        assert lines[GAP]["gaps"].startswith(OPEN_GAP)
        assert lines[HALTED]["headline"].startswith(f"{HALTED}  HALTED since ")


def check_driver(url: str, expected: dict[str, Figures]) -> None:
    """Assert that the driver's page and metrics show these figures. What it no longer reads says how old it is."""
    told = screens.driver_pipelines(url)
    scraped = screens.scrape(url)
    for name in (HELD, GAP):
        assert screens.figures_of_document(told[name]) == expected[name]
        assert screens.figures_of_metrics(scraped[name], 3 * LAG_INTERVAL_S) == expected[name]
    assert told[HALTED]["lag"]["offsets"] is None, "it asks Kafka no more, and does not say none"
    assert screens.figures_of_metrics(scraped[HALTED], 3 * LAG_INTERVAL_S).lag_offsets is None
    assert told[HALTED]["table"]["age_seconds"] > 0
    assert scraped[HALTED]["headrace_table_count_age_seconds"] > 0
    assert [scraped[name]["headrace_waits_for_registry"] for name in NAMES] == [1, 0, 0]
    assert [scraped[name]["headrace_pipeline_alive"] for name in NAMES] == [1, 1, 0]


def check_words(pipelines: Pipelines, supervised: Supervised, url: str, document: dict[str, Any]) -> None:
    """Assert that each screen says what is wrong, in the same words."""
    told = screens.driver_pipelines(url)
    halted = document[HALTED]["halted"]
    assert "another client ran WRITE" in halted["reason"], "the sentence that says what happened"
    assert (told[HALTED]["state"], told[HALTED]["halted"]) == (document[HALTED]["state"], halted)
    assert supervised.ask("/status")["pipelines"][HALTED]["halted"] == halted["reason"]
    wait = document[HELD]["registry_wait"]["text"]
    assert wait.startswith(WAITS)
    lines = screens.first_lines(len(NAMES), "status", pipelines.config, "--watch")
    in_pipe = {line.split()[1]: line for line in lines}
    verdicts = " ".join(headrace("status", pipelines.config, "--check", code=1).split())
    troubles = {
        HELD: ("warning", f"the batch {wait}"),
        GAP: ("warning", "1 open gap"),
        HALTED: ("critical", f"HALTED since {instant(halted['since'])}: {halted['reason']}"),
    }
    # On a busy machine the oldest record may wait long, too.
    for name, (level, reason) in troubles.items():
        for health in (document[name]["health"], told[name]["health"]):
            assert health["level"] == level
            assert reason in health["reasons"]
        assert re.search(rf"{name} {level} .*{re.escape(reason)}", verdicts)
        assert f" health={level} " in in_pipe[name]
        assert json.dumps(reason, ensure_ascii=False).strip('"') in in_pipe[name]
    assert f" lag_offsets={1} " in in_pipe[HELD]
    assert f" lag_offsets={MORE} " in in_pipe[HALTED]
