"""One mistake in a configuration is one line, at the key where a person wrote it."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError

NAMES = ("clicks", "installs", "views", "carts", "sales")


def pipeline(name: str, **settings: Any) -> dict[str, Any]:
    return {
        "topics": [name], "table": {"location": f"/lake/{name}"}, "event_time": {"field": "at"}, **settings
    }  # fmt: skip


def fault_lines(path: Path, pipelines: dict[str, Any], **sections: Any) -> list[str]:
    document = {
        "kafka": {"bootstrap_servers": "broker:9092"}, "registry": {"url": "http://registry:8081"},
        "checkpoints": "/checkpoints", "pipelines": pipelines, **sections,
    }  # fmt: skip
    file = path / "pipelines.yaml"
    # PyYAML writes an object that stands at several places once, and aliases of it.
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.raises(ConfigError) as refusal:
        load(file)
    first, *lines = str(refusal.value).splitlines()
    assert first == f"{file} cannot be used:"
    return [line.removeprefix("  ") for line in lines]


# A mistake in the settings of a pipeline, its key, and a part of what is said of it.
MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "key of a spec": ({"specs": {"com.Click": {"whre": "x"}}}, "specs.com.Click", "did you mean 'where'?"),
    "type of a cast": ({"specs": {"com.Click": {"cast": {"n": "strng"}}}}, "specs.com.Click.cast", "'string'?"),
    "share of a sample": ({"specs": {"C": {"sample": {"share": "2", "by": "n"}}}}, "specs.C.sample.share", "no share"),
    "one of two types": ({"specs": {"C": {"flatten": {"n": 1}}}}, "specs.C.flatten", "boolean; or: Input should be"),
    "duration": ({"commit": {"max_delay": "soon"}}, "commit.max_delay", "such as '10 min'"),
    "key of a section": ({"commit": {"max_offset": 5}}, "commit", "did you mean 'max_offsets'?"),
    "word of a list": ({"on_data_loss": "ignore"}, "on_data_loss", "'record' or 'stop'"),
    "policy": ({"privacy": {"tags": {"PII": "hsh"}}}, "privacy.tags", "is no policy"),
    "way of a route": ({"route": {"by": "recrd", "targets": {"*": "/lake/{name}"}}}, "route.by", "'record' or"),
    "type of a hook": ({"hooks": [{"type": "webhok"}]}, "hooks.0", "none of: webhook,"),
    "URL of a hook": ({"hooks": [{"type": "webhook", "name": "a", "url": 5}]}, "hooks.0.url", "should be text"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_pipeline_is_one_line_at_its_key(tmp_path: Path, name: str) -> None:
    settings, key, text = MISTAKES[name]
    (line,) = fault_lines(tmp_path, {"clicks": pipeline("clicks", **settings)})
    assert line.startswith(f"pipelines.clicks.{key}: ")
    assert text in line


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_defaults_is_one_line_there(tmp_path: Path, name: str) -> None:
    settings, key, text = MISTAKES[name]
    (line,) = fault_lines(tmp_path, {name: pipeline(name) for name in NAMES}, defaults=settings)
    assert line.startswith(f"defaults.{key}: ")
    assert text in line


@pytest.mark.parametrize("is_alias", [True, False], ids=["alias", "copy"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_that_several_pipelines_share_is_one_line_that_names_them(
    tmp_path: Path, name: str, is_alias: bool
) -> None:
    settings, key, _ = MISTAKES[name]
    pipelines = {
        pipeline_name: pipeline(pipeline_name, **(settings if is_alias else deepcopy(settings)))
        for pipeline_name in NAMES
    }
    (line,) = fault_lines(tmp_path, pipelines)
    assert line.startswith(f"pipelines.clicks.{key}: ")
    assert line.endswith(" (the same in installs, views, carts and 1 more)")


def test_different_mistakes_at_one_key_keep_a_line_each(tmp_path: Path) -> None:
    lines = fault_lines(
        tmp_path,
        {
            "clicks": pipeline("clicks", commit={"max_delay": "soon"}),
            "installs": pipeline("installs", commit={"max_delay": "later"}),
        },
    )
    assert [line.partition(":")[0] for line in lines] == [
        "pipelines.clicks.commit.max_delay", "pipelines.installs.commit.max_delay",
    ]  # fmt: skip


def test_a_pipeline_s_own_mistake_is_not_said_of_the_defaults(tmp_path: Path) -> None:
    pipelines = {"clicks": pipeline("clicks", commit={"max_delay": "soon"}), "installs": pipeline("installs")}
    (line,) = fault_lines(tmp_path, pipelines, defaults={"commit": {"max_delay": "1 min"}})
    assert line.startswith("pipelines.clicks.commit.max_delay: ")


def test_all_unknown_keys_of_a_section_are_named(tmp_path: Path) -> None:
    (line,) = fault_lines(tmp_path, {"clicks": pipeline("clicks", comit={}, rol={})})
    assert "unknown key 'comit'; did you mean 'commit'? and unknown key 'rol'; did you mean 'roll'?" in line
    (line,) = fault_lines(tmp_path, {"clicks": pipeline("clicks")}, defaults={"comit": {}, "rol": {}})
    assert "'comit'" in line
    assert "'rol'" in line


def test_each_reference_without_a_value_names_the_keys_that_want_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    login = {"type": "basic", "user": "me", "password": "${env:NOWHERE}"}
    registry = {"url": "http://registry:8081", "login": login}
    kafka = {"bootstrap_servers": "broker:9092", "options": {"client.rack": f"${{file:{tmp_path}/rack}}"}}
    lines = fault_lines(
        tmp_path,
        {"clicks": pipeline("clicks", hooks=[{"type": "webhook", "name": "a", "url": "${env:NOWHERE}"}])},
        registry=registry,
        kafka=kafka,
    )
    file_line, variable_line = lines
    assert file_line.startswith(f"kafka.options.client.rack: the file {tmp_path}/rack cannot be read: No such file")
    assert variable_line == (
        "registry.login.password, pipelines.clicks.hooks.0.url: the environment variable NOWHERE is not set. Set it."
    )
