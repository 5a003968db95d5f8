"""Writes YAML of which every reader gives each text back."""

import math
from typing import Any

import yaml

# Unescaped in a scalar, YAML 1.1 reads these as a blank: Unicode's own line breaks.
_UNICODE_BREAKS = ("\x85", "\u2028", "\u2029")
_TEXT_TAG = "tag:yaml.org,2002:str"


class TextDumper(yaml.SafeDumper):
    """Escapes Unicode's line breaks. A `Dumper` for `yaml.dump`."""


class _OneLineDumper(yaml.SafeDumper):
    """Escapes every line break."""


def dump_inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    dumped = yaml.dump(
        value, Dumper=_OneLineDumper, sort_keys=False, allow_unicode=True, width=math.inf, default_flow_style=True
    )
    # A scalar alone is followed by the mark of a document's end.
    return str(dumped).removesuffix("...\n").rstrip("\n")


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return _represent(dumper, text, has_escape=any(character in text for character in _UNICODE_BREAKS))


def _represent_one_line(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return _represent(dumper, text, has_escape=len(f"{text}.".splitlines()) > 1)


def _represent(dumper: yaml.SafeDumper, text: str, *, has_escape: bool) -> yaml.Node:
    # YAML has escapes between double quotes only.
    style = '"' if has_escape else None
    return dumper.represent_scalar(_TEXT_TAG, text, style=style)


TextDumper.add_representer(str, _represent_text)
_OneLineDumper.add_representer(str, _represent_one_line)
