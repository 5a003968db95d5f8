"""The section `defaults`: what all pipelines of a file have that do not say otherwise."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError

BASE = {"kafka": {"bootstrap_servers": "x:1"}, "registry": {"url": "http://x"}, "checkpoints": "/checkpoints"}
DEFAULTS = {
    "table": {"location": "/lake/{pipeline}", "format": "parquet"},
    "event_time": {"field": "at"}, "commit": {"max_delay": "1 min", "max_offsets": 5}, "topics": ["{pipeline}-events"],
}  # fmt: skip


def config(defaults: dict[str, Any], **pipelines: Any) -> Config:
    return Config.model_validate({**BASE, "defaults": defaults, "pipelines": pipelines})


def test_pipelines_have_what_they_do_not_say_and_their_name_in_it() -> None:
    found = config(DEFAULTS, clicks=None, views={"commit": {"max_offsets": 7}, "topics": ["v"]}).pipelines
    assert found["clicks"].table.location == "/lake/clicks"
    assert found["clicks"].topics.names == ["clicks-events"]
    views = found["views"]
    assert (views.table.location, views.table.format, views.topics.names) == ("/lake/views", "parquet", ["v"])
    assert (views.commit.max_offsets, views.commit.max_delay) == (7, timedelta(minutes=1))


def test_a_section_of_another_type_stands_alone_and_a_list_too() -> None:
    defaults = {**DEFAULTS, "bucket": {"type": "event_time", "width": "1 d"}, "topics": ["a", "b"]}
    one = config(defaults, x={"bucket": {"type": "field", "field": "country"}, "topics": ["c"]}).pipelines["x"]
    assert one.bucket == {"type": "field", "field": "country"}
    assert one.topics.names == ["c"]


def test_a_route_is_merged_target_by_target() -> None:
    defaults = {
        **DEFAULTS,
        "route": {"by": "topic", "targets": {"*": "/lake/{pipeline}_{name}"}},
        "seal": {"enabled": False},
    }
    one = config(defaults, x={"route": {"targets": {"a": "/lake/a"}}}).pipelines["x"]
    assert one.route is not None
    assert {name: target.location for name, target in one.route.targets.items()} == {
        "*": "/lake/x_{name}", "a": "/lake/a",
    }  # fmt: skip


def test_a_file_that_is_read_twice_gives_equal_configurations() -> None:
    one = config(DEFAULTS, clicks={})
    again = Config.model_validate(one.model_dump(mode="json", by_alias=True, exclude_unset=True))
    assert again.pipelines == one.pipelines


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ("commit: {max_offset: 5}", "  defaults.commit: unknown key 'max_offset'; did you mean 'max_offsets'?"),
        ("comit: {}", "defaults: unknown key 'comit'; did you mean 'commit'?"),
        ("table: {location: /lake/one}", "would write two tables to /lake/one; give each its own location"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path: Path, defaults: str, said: str) -> None:
    file = tmp_path / "pipelines.yaml"
    pipeline = "{topics: [t], event_time: {field: at}}"
    places = "" if "table" in defaults else "  table: {location: '/lake/{pipeline}'}\n"
    file.write_text(
        "kafka: {bootstrap_servers: 'x:1'}\nregistry: {url: 'http://x'}\ncheckpoints: /checkpoints\n"
        f"defaults:\n{places}  {defaults}\npipelines: {{clicks: {pipeline}, views: {pipeline}}}\n"
    )
    with pytest.raises(ConfigError) as failed:
        load(file)
    assert said in str(failed.value)
