"""The page of a driver with 60 pipelines and 500 tables, in a real Chromium: searched, sorted, one opened."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.config.sections.connections import Http
from headrace.writer.web import page
from headrace.writer.web.http_server import NOT_HERE, Answer, answering, json_answer
from tests.support.browser import Browser, browser
from tests.support.fleet_status import pipeline, sixty_pipelines

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(120)]
RESTART: dict[str, Any] = {"error": None, "restart": ["kafka.request_timeout"]}


@pytest.fixture
def status() -> dict[str, Any]:
    return {"at": "2026-11-20T12:00:00.000Z", **sixty_pipelines(), "executors": None, "config": RESTART}


@pytest.fixture
def url(status: dict[str, Any]) -> Iterator[str]:
    def get(path: str, _: str) -> Answer:
        match path:
            case "/":
                return 200, page.CONTENT_TYPE, page.content()  # type: ignore[return-value]
            case "/status":
                return json_answer(status)
            case "/buckets":
                return json_answer({"at": status["at"], "pipelines": {}})
        return NOT_HERE

    with answering(Http(port=0), get) as server:
        yield server


def names(page_: Browser, selector: str) -> list[str]:
    return list(page_.find(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)"))


def rounds(page_: Browser, more: int = 1) -> None:
    shown = "Number(document.documentElement?.dataset.round || 0)"
    before = page_.find(shown)
    page_.until(f"{shown} >= {before + more}")


def test_sixty_pipelines_and_five_hundred_tables_stay_readable(
    url: str, status: dict[str, Any], tmp_path: Path
) -> None:
    with browser(tmp_path / "profile") as page_:
        page_.look(1240)
        page_.open(f"{url}/")
        rounds(page_)
        assert names(page_, "#lines button")[2:5] == ["paused", "orders-56", "orders-55"]
        assert names(page_, ".pipeline h2") == [names(page_, "#lines button")[0]], "the worst one in full"
        assert "kafka.request_timeout" in page_.find("document.querySelector('#filed').textContent")
        page_.picture(tmp_path / "fleet.png")

        page_.find(
            "(() => { const e = document.querySelector('#fleet input'); e.value = 'event499';"
            " e.dispatchEvent(new Event('input')); })()"
        )
        assert names(page_, "#lines button") == ["mixed"]
        page_.find("document.querySelector('#lines button').click()")
        rounds(page_)
        assert "mixed" in names(page_, ".pipeline h2")
        assert len(names(page_, ".tables tbody tr")) == 50
        page_.find(
            "(() => { const e = document.querySelector('.tables input'); e.focus(); e.value = 'event49';"
            " e.dispatchEvent(new Event('input')); })()"
        )
        rounds(page_)
        assert len(names(page_, ".tables tbody tr")) == 11
        assert page_.find("document.activeElement.getAttribute('aria-label')") == "tables of mixed"
        page_.picture(tmp_path / "tables.png")
        assert "9.0 GiB of files wait at the log, at most 10 GiB" in page_.find(
            "document.querySelector('.tables h3').textContent"
        )
        page_.find("document.querySelector('.tables .chip').click()")
        assert names(page_, ".tables tbody tr td:first-child") == ["com.shop (11)"], "of those that are searched for"
        rounds(page_)
        page_.find("document.querySelector('.tables tbody button').click()")
        assert len(names(page_, ".tables tbody tr")) == 1 + 11
        page_.find(
            "(() => { const e = document.querySelector('.tables input'); e.value = '';"
            " e.dispatchEvent(new Event('input')); })()"
        )
        assert names(page_, ".tables tbody tr td:first-child")[51:] == [
            "and 450 more of com.shop: search, or headrace status --tables"
        ]

        del status["pipelines"]["mixed"]
        status["pipelines"]["new"] = pipeline("new")
        rounds(page_, 2)
        assert "mixed" not in names(page_, ".pipeline h2")
        page_.find(
            "(() => { const e = document.querySelector('#fleet input'); e.value = '';"
            " e.dispatchEvent(new Event('input')); document.querySelector('#level-critical').click(); })()"
        )
        assert names(page_, "#lines button") == ["failing"]
        page_.find("document.querySelector('#level-critical').click(), document.querySelector('#grouped').click()")
        assert names(page_, "#lines button") == ["failing", "paused", "orders (57)", "new"]
        orders = "document.querySelector('#lines .group')"
        assert page_.find(f"[...{orders}.cells].slice(1, 3).map((e) => e.textContent)") == ["57 running", "1.6M"]
        page_.find(f"{orders}.querySelector('button').click()")
        rounds(page_)
        assert len(names(page_, "#lines button")) == 4 + 57
        page_.picture(tmp_path / "groups.png")
        page_.find("document.querySelector('#level-critical').click()")
        assert names(page_, "#lines button") == ["failing"], "a group of one is its line"
        page_.look(420)
        page_.picture(tmp_path / "narrow.png")
        assert page_.find("document.documentElement.scrollWidth") <= 420
        assert page_.complaints() == []
