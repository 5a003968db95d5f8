"""Writes YAML of which every reader gives each text back."""

import math
from typing import Any

import yaml


class TextDumper(yaml.SafeDumper):
    """Escapes line breaks, of which YAML 1.1 folds some where they stand in a scalar. A `Dumper` for `yaml.dump`."""


def dump_inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    dumped = yaml.dump(
        value, Dumper=TextDumper, sort_keys=False, allow_unicode=True, width=math.inf, default_flow_style=True
    )
    # A scalar alone is followed by the mark of a document's end.
    return str(dumped).removesuffix("...\n").rstrip("\n")


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    has_line_break = len(f"{text}.".splitlines()) > 1
    # YAML has escapes between double quotes only.
    style = '"' if has_line_break else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


TextDumper.add_representer(str, _represent_text)
