"""Holds JSON that commands print against docs/json_keys.yaml, which REFERENCE.md shows."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from typer._click.globals import get_current_context

from headrace.writer.cli.main import LazyCommands


@cache
def documented_keys() -> Mapping[str, Mapping[str, str]]:
    """What is said of each command's keys."""
    path = Path(__file__).parents[2] / "docs" / "json_keys.yaml"
    keys: Mapping[str, Mapping[str, str]] = yaml.safe_load(path.read_text())
    return keys


def paths(value: Any, keys: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    """Yield the keys of a document as the file writes them, as deep as it goes."""
    for item in value if isinstance(value, list) else [value]:
        for key, inner in item.items():
            star = any(pattern == f"{prefix}*" or pattern.startswith(f"{prefix}*.") for pattern in keys)
            path = f"{prefix}*" if star else prefix + key
            if any(pattern.startswith(f"{path}.") for pattern in keys):
                yield from paths(inner, keys, f"{path}.")
            else:
                yield path


def command() -> str | None:
    """Return the words of the command that runs in this process; None: none does, or only a part of the whole."""
    context = get_current_context(silent=True)
    names = list[str]()
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    is_complete = context is not None and isinstance(getattr(context.command, "commands", None), LazyCommands)
    return " ".join(names) if is_complete else None


def check(document: Any) -> None:
    """Hold what a command prints against what is said of it."""
    name = command()
    if name is None or (isinstance(document, dict) and "$schema" in document):
        return
    if name == "explain":  # an entry of another kind is shown as it stands in the log
        entries = document["pipelines"].items()
        document = {"pipelines": {pipeline: entry for pipeline, entry in entries if entry["kind"] == "batch"}}
    keys = documented_keys()[name]
    unknown = set(paths(document, keys)) - set(keys)
    assert not unknown, f"docs/json_keys.yaml does not say what these keys of `headrace {name} --json` are: {unknown}"
