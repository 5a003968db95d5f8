"""Records of a real broker and registry are saved with their schemas, and tested without both."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
CLICK, INSTALL = "headrace.demo.Click", "headrace.demo.Install"


def test_a_sample_is_saved_shown_and_tested_without_a_server(
    tmp_path: Path, bootstrap: str, registry_url: str, topic: MakeTopic
) -> None:
    site, name = Site(tmp_path, bootstrap, registry_url), topic(2)
    targets = {CLICK: str(tmp_path / "lake" / "clicks"), "*": str(tmp_path / "lake" / "{name}")}
    spec = {"where": "country <> 'DE'", "columns": {"exclude": ["url"]}}
    site.pipeline("events", [name], route={"targets": targets}, specs={CLICK: spec})
    for kind, count in (("clicks", 30), ("installs", 20)):
        site.send(name, site.values(name, count, kind=kind, subject=f"{name}-{kind}"))
    site.send(name, [(b"k", b"\0\0\0\0\1"), (b"k", None)])  # type: ignore[list-item]
    sample, options = tmp_path / "sample.jsonl", ["-n", "52", "--json"]
    live = say("preview", str(site.config), *options, "--save", str(sample))
    assert sample.exists()
    # The sample is there already: what was read is shown all the same.
    assert say("preview", str(site.config), *options, "--save", str(sample), code=2) == live

    site.bootstrap, site.registry_url = "127.0.0.1:1", "http://127.0.0.1:1"
    from_file = say("preview", str(site.config), "--file", str(sample), *options)
    assert from_file == live
    case = {
        "config": str(site.config),
        "now": "2026-11-20T13:00:00Z",
        "records": "sample.jsonl",
        "expect": "found.yaml",
    }
    (tmp_path / "events.test.yaml").write_text(yaml.safe_dump(case))
    say("test", str(tmp_path / "events.test.yaml"), "--update", "--yes", own_process=True)
    assert "52 passed" in say("test", str(tmp_path), own_process=True)
    document = yaml.safe_load((tmp_path / "found.yaml").read_text())
    lines = map(json.loads, live.splitlines())
    shown = {f"{line['topic']}/{line['partition']}:{line['offset']}": line["outcome"] for line in lines}
    tested = {
        position: {"exit": expected} if isinstance(expected, str) else expected
        for position, expected in document.items()
    }
    assert {
        position: expected["exit"] for position, expected in tested.items() if expected["exit"] != "tombstone"
    } == shown
    assert {value["table"] for value in tested.values() if value["exit"] == "row"} == {CLICK, INSTALL}
    assert not (tmp_path / "lake").exists(), "no table was made"
