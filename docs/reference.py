"""Writes docs/REFERENCE.md from the code: every command, every configuration key, every exit code. `make reference`.

And the JSON schema of the configuration file: docs/headrace.schema.json, and the chart's copy, by which it checks the
file of the pipelines.
"""

import json
import re
import typing
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from headrace.writer.cli.commands import examples
from headrace.writer.cli.main import app
from headrace.writer.config.pipelines import Config
from headrace.writer.core import errors
from headrace.writer.core.pages import ADDRESS
from headrace.writer.core.units import show_duration, show_size

_PAGE = re.compile(re.escape(f"{ADDRESS}/docs/") + r"([A-Z]+)\.md(#[\w-]+)?")
KEYS = Path(__file__).parent / "json_keys.yaml"
CHART_FILES = Path(__file__).parents[1] / "helm" / "headrace" / "files"


def text() -> str:
    """Return the whole page. Addresses of pages are links from one to the next."""
    page = "\n".join([*_head(), *_verbs(), *_exit_codes(), *_configuration(), *_environment()]) + "\n"
    return _PAGE.sub(r"[\1](\1.md\2)", page)


def _head() -> list[str]:
    return ["# Reference", "", "Written by `make reference` from the code; do not edit.", ""]


def _verbs() -> list[str]:
    lines = [
        "## Commands",
        "",
        "`headrace --version` shows the installed version; every command has `--help`.",
        "",
        "A command that takes a configuration file and is given none reads `HEADRACE_CONFIG`, else `./pipelines.yaml`.",
        "",
        "`headrace --install-completion` completes commands and options in bash, zsh, fish and PowerShell;",
        "`headrace --show-completion` prints the script, for shells that are set up in another way.",
        "",
        "`--json` prints for programs: one document, a list, or a document a line. `*` is the name of a pipeline.",
        "",
    ]
    example_of = dict(examples())
    for name, command in _commands(typer.main.get_command(app)):
        lines += [
            f"### headrace {name}",
            "",
            command.help or "",
            "",
            f"    {example_of[name]}",
            "",
            "| option | default | meaning |",
            "| --- | --- | --- |",
        ]
        for parameter in command.params:
            names = [*parameter.opts, *parameter.secondary_opts]
            flag = ", ".join(f"`{o}`" for o in names) if parameter.param_type_name == "option" else parameter.name
            lines.append(f"| {flag} | {_given(parameter)} | {getattr(parameter, 'help', '') or ''} |")
        lines += ["", *_json_keys(name)]
    return lines


def _json_keys(name: str) -> list[str]:
    """Return the table of what `--json` prints, for commands that have it."""
    keys = yaml.safe_load(KEYS.read_text(encoding="utf-8")).get(name)
    if keys is None:
        return []
    rows = (f"| `{key}` | {meaning} |" for key, meaning in keys.items())
    return ["| key of `--json` | meaning |", "| --- | --- |", *rows, ""]


def _commands(group: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Every verb by its whole name, those of groups included."""
    commands = []
    for name, command in sorted(group.commands.items()):
        commands += (
            _commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else [(prefix + name, command)]
        )
    return commands


def _given(parameter: Any) -> str:
    if parameter.param_type_name != "option":
        default = parameter.show_default if isinstance(parameter.show_default, str) else "none"
        return "required" if parameter.required else default
    if parameter.is_flag:
        return ""
    return "none" if parameter.default is None else f"`{parameter.default}`"


def _exit_codes() -> list[str]:
    lines = ["## Exit codes", "", "| code | meaning |", "| --- | --- |", "| 0 | done |"]
    kinds = (
        errors.HeadraceError,
        errors.ConfigError,
        errors.LogChanged,
        errors.CheckpointUnusable,
        errors.FrontierLost,
        errors.Fenced,
        errors.LimitReached,
        errors.Occupied,
    )
    lines += [f"| {kind.exit_code} | {(kind.__doc__ or '').splitlines()[0]} |" for kind in kinds]
    order = ", ".join(str(code.value) for code in errors.ExitCode)
    return [
        *lines,
        "",
        f"Where pipelines end differently, the process ends with the code that stands last in: {order}.",
        "",
    ]


def _configuration() -> list[str]:
    lines = ["## Configuration", "", "One YAML file. Durations and sizes carry units (`10 min`, `128 MiB`).",
             "`${env:NAME}` and `${file:/path}` are replaced when the file is read.", "",
             "[headrace.schema.json](headrace.schema.json) is its JSON schema; `headrace validate --json-schema`",
             "prints that of the installed version. An editor with YAML's language server completes and checks a file",
             "that begins with `# yaml-language-server: $schema=` and the schema's path. It marks a reference in the",
             "place of a number, which headrace takes.", "",
             "| key | default | meaning |", "| --- | --- | --- |"]  # fmt: skip
    return [*lines, *_keys(Config, ""), ""]


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        key, refers = field.alias or name, (field.description or "").startswith("as `")  # to the keys of a section
        kinds = [] if refers else _kinds_of(field.annotation)
        for kind in kinds:
            lines += _keys(kind, f"{prefix}{key}[{typing.get_args(kind.model_fields['type'].annotation)[0]}].")
        if kinds:
            continue
        inner = None if refers else _model_of(field.annotation)
        # The others of a section of its own kind have the same keys.
        if inner is model:
            inner = None
        if inner is None or any(typing.get_origin(one) is typing.Literal for one in typing.get_args(field.annotation)):
            default = (
                "required" if field.is_required() else f"`{_shown(name, field.get_default(call_default_factory=True))}`"
            )
            lines.append(f"| `{prefix}{key}` | {default} | {field.description or ''} |")
        if inner is not None:
            below = f"{prefix}{key}." if not _is_mapping(field.annotation) else f"{prefix}{key}.<name>."
            lines += _keys(inner, below)
    return lines


def _kinds_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that an item of a list may be, told apart by their `type`."""
    for item in typing.get_args(annotation):
        if typing.get_origin(item) is typing.Annotated:
            return list(typing.get_args(typing.get_args(item)[0]))
    return []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *typing.get_args(annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _is_mapping(annotation: Any) -> bool:
    return typing.get_origin(annotation) is dict


def _shown(name: str, value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "none"
    if hasattr(value, "total_seconds"):
        return show_duration(value)
    if isinstance(value, dict):
        return str({k: show_duration(v) if hasattr(v, "total_seconds") else v for k, v in value.items()})
    return show_size(value) if name in ("target_file_size", "buffer") else str(value)


def _environment() -> list[str]:
    return [
        "## Environment", "", "| variable | meaning |", "| --- | --- |",
        "| `HEADRACE_CONFIG` | the configuration file of commands that name none (default: `./pipelines.yaml`) |",
        "| `HEADRACE_LOG` | log: `text` (default), or `json`, one object a line; a failure ends with a sentence |",
        "| `HEADRACE_CACHE` | where fetched Java parts are kept (default: `~/.cache/headrace`) |",
        "| `HEADRACE_JARS` | directory with Spark's Kafka jars; nothing is fetched |",
        "| `HEADRACE_IVY_SETTINGS` | an Ivy settings file, to fetch from a mirror |",
        "| `HEADRACE_CONFIG_OVERLAY` | beneath the configuration: what the machine decides ([deploy](DEPLOY.md)) |",
        "| `HEADRACE_SUPERVISED` | set by `headrace supervisor run` for its driver: the folder in which they talk |",
        "| `HEADRACE_FAULT` | for tests: `point:n` kills the process the n-th time it passes, `:n:file` holds it |",
        "| `HEADRACE_TROUBLE` | for tests: while that file is there, local storage fails and is slow, as it says |",
        "| `HEADRACE_CHROMIUM` | for tests: the browser that looks at the page |",
        "| `HEADRACE_PICTURES` | for tests: the folder for pictures of the page |",
        "| `AWS_…` | where S3 is, and the credentials for it: see [storage](STORAGE.md) |",
        "| `HEADRACE_TEST_S3` | `minio` or `seaweedfs`: the test suite runs it where it would run moto |",
        "| `HEADRACE_TEST_GCS` | `fake-gcs`: the test suite runs fake-gcs-server where a server in Python plays it |",
        "| `HEADRACE_TEST_AZURE` | `azurite`: the test suite runs Azurite where a server in Python plays it |",
        "| `HEADRACE_TEST_RACES` | for how many names eight processes race in a test (50; `make test-stores`: 100) |",
        "| `HEADRACE_TEST_REFUSES_S` | seconds that a table of a route refuses in a test (60; `3600`: an hour) |",
        "| `HEADRACE_TEST_SERVERS` | `containers`: the test suite takes its servers from a container daemon |",
    ]  # fmt: skip


def schema_text() -> str:
    """Return the JSON schema of the configuration file."""
    return json.dumps(Config.json_schema(), ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "REFERENCE.md").write_text(text(), encoding="utf-8")
    for folder in (Path(__file__).parent, CHART_FILES):
        (folder / "headrace.schema.json").write_text(schema_text(), encoding="utf-8")
