"""A bad configuration is one sentence a line: the thing, the place, the mend. Never a secret."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from writer.config import Config, load
from writer.errors import ConfigError
from writer.units import duration, show_duration, show_size, size


def good() -> dict[str, Any]:
    return {
        "kafka": {"bootstrap_servers": "b:9092"},
        "registry": {"url": "http://r:8081"},
        "checkpoints": "/cp",
        "pipelines": {
            "clicks": {"topics": ["clicks"], "table": {"location": "/lake/clicks"}, "event_time": {"field": "t"}}
        },
    }


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Any], Config]:
    def loaded(content: Any) -> Config:
        path = tmp_path / "headrace.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load(path)

    return loaded


def changed(path: str, value: Any) -> dict[str, Any]:
    content = good()
    at: Any = content
    *parents, last = path.split("/")
    for name in parents:
        at = at.setdefault(name, {})
    at[last] = value
    return content


def test_the_defaults_are_those_of_the_reference(read: Callable[[Any], Config]) -> None:
    pipeline = read(good()).pipelines["clicks"]
    assert pipeline.commit.max_delay == timedelta(minutes=10)
    assert pipeline.roll.target_file_size == 128 * 2**20
    assert pipeline.dead_letters == "/lake/clicks_dead_letters"
    assert pipeline.bucket == {"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("kafka/bootstrap_server", "x", "unknown key 'bootstrap_server'; did you mean 'bootstrap_servers'?"),
        ("pipelines/clicks/comit", {}, "did you mean 'commit'?"),
        ("pipelines/clicks/commit", {"max_delay": 600}, "needs a number and a unit, such as '10 min'"),
        ("pipelines/clicks/commit", {"max_delay": "0 s"}, "must be longer than zero"),
        ("pipelines/clicks/roll", {"target_file_size": "128 MBit"}, "needs a number and a unit, such as '128 MiB'"),
        ("pipelines/clicks/bucket", {"type": "event_tme"}, "event_time"),
        ("pipelines/clicks/bucket", {"type": "event_time", "width": "1 h", "zone": "Europe/Berln"}, "Europe/Berlin"),
        ("pipelines/clicks/start", "newest", "must be earliest, latest"),
        ("pipelines/clicks/start", {"timestamp": "2026-11-20T05:00:00"}, "has no zone"),
        ("pipelines/clicks/topics", [], "at least 1 item"),
        ("pipelines/clicks/table", {"location": "lake/clicks"}, "is relative; write the absolute path"),
        ("pipelines/clicks/table", {"location": "s3://lake/clicks"}, "only local and mounted paths are supported yet"),
        ("pipelines/Clicks", {}, "pipelines.Clicks"),
        ("registry", {}, "give either 'url' or 'files'"),
        ("checkpoints", None, "checkpoints"),
        ("pipelines", {}, "at least 1 item"),
    ],
)
def test_a_fault_is_named_with_place_and_mend(read: Callable[[Any], Config], path: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(changed(path, value))
    assert words in str(caught.value)
    assert "headrace.yaml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_two_pipelines_never_share_a_table(read: Callable[[Any], Config]) -> None:
    content = good()
    content["pipelines"]["other"] = content["pipelines"]["clicks"]
    with pytest.raises(ConfigError, match="'clicks' and 'other' would write two tables to /lake/clicks"):
        read(content)


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("- a", "not a mapping"), ("a: [", "is not YAML")])
def test_what_is_no_mapping_is_said(read: Callable[[Any], Config], text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.yaml"):
        load(tmp_path / "nowhere.yaml")


def test_references_are_replaced_and_never_shown(
    read: Callable[[Any], Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    monkeypatch.setenv("BROKER", "b:1")
    content = changed("kafka/bootstrap_servers", "${env:BROKER}")
    content["registry"]["url"] = f"http://u:${{file:{tmp_path}/secret}}@r"
    assert read(content).registry.url == "http://u:s3cret@r"
    content["registry"]["urll"] = f"${{file:{tmp_path}/secret}}"
    with pytest.raises(ConfigError) as caught:
        read(content)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("reference", ["${env:HEADRACE_NOT_SET}", "${file:/nowhere/secret}"])
def test_a_reference_to_nothing_is_named(read: Callable[[Any], Config], reference: str) -> None:
    with pytest.raises(ConfigError, match=r"HEADRACE_NOT_SET|/nowhere/secret"):
        read(changed("kafka/bootstrap_servers", reference))


@given(st.integers(1, 10**9))
def test_a_duration_reads_back_as_it_is_shown(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert duration(show_duration(value)) == value


@given(st.integers(1, 1023), st.sampled_from([1, 2**10, 2**20, 2**30]))
def test_a_size_reads_back_as_it_is_shown(count: int, unit: int) -> None:
    assert size(show_size(count * unit)) == count * unit
