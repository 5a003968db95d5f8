"""What the driver's page shows of a pipeline in each state, in a real browser: as the terminal and the metrics do.

HEADRACE_PICTURES names a folder for pictures of it.
"""

import base64
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.config.sections.connections import Http
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from headrace.writer.web.endpoints import serving
from tests.support.browser import Browser, browser
from tests.support.pipeline_states import pipeline_states

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(300)]
STATES = [name for name in pipeline_states() if not name.startswith("lake")]
TILES = (
    "Object.fromEntries([...document.querySelectorAll('.tile')].map(tile => "
    "[tile.querySelector('span').textContent, [...tile.querySelectorAll('b, span')].map(part => part.textContent)]))"
)
NOTES = "[...document.querySelectorAll('.note')].map(note => note.textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def picture(page: Browser, name: str) -> None:
    folder = os.environ.get("HEADRACE_PICTURES")
    if folder:
        data = page.call("Page.captureScreenshot", format="png")["data"]
        Path(folder, f"{name.replace(' ', '-')}.png").write_bytes(base64.b64decode(data))


@pytest.mark.parametrize("name", STATES)
def test_the_page_shows_the_figures_of_the_document(page: Browser, name: str) -> None:
    progress = Progress("clicks")
    progress._view = pipeline_states(datetime.now(UTC))[name]
    pipeline_document: dict[str, Any] = document([progress.view()], datetime.now(UTC))["pipelines"]["clicks"]
    with serving(Http(port=0), {"clicks": progress}) as url:
        for width, dark in ((400, False), (1280, True), (1280, False)):
            page.look(width, dark=dark)
            page.open(f"{url}/")
            page.until("document.querySelectorAll('.tile').length > 0")
            assert page.find("document.documentElement.scrollWidth <= innerWidth"), f"{name} at {width}"
            picture(page, f"{name} {width}{' dark' if dark else ''}")
        tiles = page.find(TILES)
        notes = page.find(NOTES)
    lag = tiles["lag"]
    if pipeline_document["lag"]["offsets"] is None:
        assert (lag[1], "not known" in lag[2]) == ("?", True)
    else:
        assert lag[1] == {0: "none", 60_000: "60K"}[pipeline_document["lag"]["offsets"]]
    since_start = pipeline_document["totals"]["records"]["rows"]
    if pipeline_document["targets"]:
        assert tiles["rows since the start"][1] == str(since_start)
    else:
        assert tiles["rows in the table"][1] == "1.2M"
        assert f"{since_start} since the start" in tiles["rows in the table"][2]
    assert tiles["dead letters"][1] == "17"
    is_old = pipeline_document["table"]["age_seconds"] > 60
    assert ("counted 10 min ago" in tiles["dead letters"][2]) is is_old, "a count that is old says so"
    if pipeline_document["halted"]:
        assert any(note.startswith("HALTED since ") for note in notes)
    if pipeline_document["state"] == "failed":
        assert "none while it is failed" in tiles["last commit"][2]
    if pipeline_document["kafka_error"]:
        assert pipeline_document["kafka_error"] in notes
    if pipeline_document["registry_wait"]:
        assert f"the batch {pipeline_document['registry_wait']['text']}" in notes
    if pipeline_document["pause"]:
        assert f"paused {pipeline_document['pause']['text']}" in notes
    assert [wait["text"] for wait in pipeline_document["retention_waits"] if wait["text"] not in notes] == []
    if pipeline_document["gaps"]["count"]:
        assert any("1 open gap, 300 offsets, Kafka holds them" in note for note in notes)
