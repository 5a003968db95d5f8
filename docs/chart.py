"""Writes helm/headrace/README.md: what the chart is, and a table of its values from the comments of values.yaml.

A comment behind a value, or one that begins with `# -- ` before it (as helm-docs reads them), is its description. A
mapping with a description is one row; others have a row for each of their values. `make reference`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_CHART = Path(__file__).parents[1] / "helm" / "headrace"
_TYPES = {dict: "object", list: "list", bool: "bool", int: "int", float: "float", str: "string"}


@dataclass(frozen=True)
class Value:
    """One row: a value, what it is when nothing is set, and what it does."""

    key: str
    default: Any
    text: str


def values(text: str) -> list[Value]:
    """Read the values of a file with their descriptions. Raises ValueError for a value without one."""
    return list(_values(yaml.compose(text), text.splitlines(), ""))


def _values(node: Any, lines: list[str], path: str) -> Iterator[Value]:
    for key, value in node.value:
        name, described = f"{path}{key.value}", _description(key, value, lines)
        nested = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        if described:
            default = yaml.safe_load(yaml.serialize(value))
            yield Value(name, default, described)
        elif nested:
            yield from _values(value, lines, f"{name}.")
        else:
            raise ValueError(f"{name} has no description in values.yaml, line {key.start_mark.line + 1}")


def _description(key: Any, value: Any, lines: list[str]) -> str:
    """Return the comment before a key that begins with `# -- `, or the one behind its value."""
    first = key.start_mark.line
    above = first
    while above and lines[above - 1].strip().startswith("#"):
        above -= 1
    comments = [line.strip().lstrip("#").strip() for line in lines[above:first]]
    starts = [at for at, comment in enumerate(comments) if comment.startswith("-- ")]
    if starts:
        return " ".join(comments[starts[-1] :]).removeprefix("-- ")
    one_line = value.end_mark.line == first
    behind = lines[first][value.end_mark.column if one_line else key.end_mark.column + 1 :]
    found = re.search(r"(?:^|\s)#\s*(.*)", behind)
    return found[1].strip() if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def text() -> str:
    """Return the README."""
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text(encoding="utf-8"))
    kubernetes = chart["kubeVersion"].removesuffix("-0")
    rows = values((_CHART / "values.yaml").read_text(encoding="utf-8"))
    lines = [
        "<!-- docs/chart.py writes this file from Chart.yaml and values.yaml: `make reference`. -->",
        f"# {chart['name']}", "", chart["description"], "",
        f"Chart {chart['version']}, for headrace {chart['appVersion']} and Kubernetes {kubernetes}.",
        "[On Kubernetes](../../docs/DEPLOY.md) says how to install, upgrade and operate it; its folder `ci/` has whole",
        "examples.", "",
        "```sh",
        "helm install clicks helm/headrace --set-file config=pipelines.yaml \\",
        "  --set image.repository=registry.example.com/headrace",
        "```", "",
        "## Values", "",
        "A value that the chart does not know, or of another type, is refused with its name.", "",
        "| key | type | default | description |", "| --- | --- | --- | --- |",
        *(
            f"| `{row.key}` | {_TYPES[type(row.default)]} | `{_cell(json.dumps(row.default, ensure_ascii=False))}` | "
            f"{_cell(row.text)} |"
            for row in rows
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (_CHART / "README.md").write_text(text(), encoding="utf-8")
