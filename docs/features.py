"""Writes "Features by format" into docs/TYPES.md from what tests declare. `make reference`.

A test declares each feature with the formats that it is tried in, so none can be claimed that is not.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.contract import test_features_by_format, test_upkeep_by_format
from tests.support.format_features import CASES, FEATURES, Feature

# They declare the features.
MODULES = (test_features_by_format, test_upkeep_by_format)
PAGE = Path(__file__).parent / "TYPES.md"
_HEADING = "## Features by format\n"
_NEXT = "\n## "
_YES = "yes"
_NOT_OFFERED = "not offered"
_NONE = "none"
_INTRODUCTION = """
Written by `make reference` from the tests that prove it; do not edit. "yes": a test does it with values of the format.
"not offered": the configuration or the command says so, with the sentence below. "none": there is nothing of the kind.
[Formats](FORMATS.md) says what the formats are.
"""
_ROWS = """**Rows.** An event makes the same row in `avro`, `json_schema`, `protobuf` and `json`, but for what follows.
`tests/property/test_formats_agree.py` sends random events in all four.

- JSON has the column `rest` besides, in each object.
- Avro's enum, fixed, uuid, duration and times of day have no type in JSON. Declare `string`, `binary`, `int` or `long`.
- NaN and the infinities are no JSON: dead letters. A union of several types is JSON text.
- A JSON Schema has times as text alone, and a decimal by Connect's words alone.
- Protobuf has no date, no decimal and no fixed, and no null inside a list or a map. An empty list or map is no null."""


def text() -> str:
    """Return the whole page, with the section as the tests declare it now."""
    page = PAGE.read_text(encoding="utf-8")
    before, heading, rest = page.partition(_HEADING)
    if not heading:
        raise ValueError(f"{PAGE} has no heading {_HEADING.strip()!r}; put it where the section belongs")
    _, following, after = rest.partition(_NEXT)
    return f"{before}{heading}{section()}{following}{after}"


def section() -> str:
    """Return the section below its heading: a table, the footnotes of its cells, and the files of the tests."""
    notes = list[str]()
    lines = [_INTRODUCTION, f"| feature | {' | '.join(f'`{name}`' for name in CASES)} |"]
    lines.append(f"| --- |{' --- |' * len(CASES)}")
    for feature in _in_order():
        cells = [_cell(feature, name, notes) for name in CASES]
        lines.append(f"| {feature.title} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {note}." for number, note in enumerate(notes, 1)), "", *_tests()]
    return "\n".join(lines) + "\n"


def _in_order() -> list[Feature]:
    """Return the features module by module, whichever was imported first."""
    modules = [module.__name__ for module in MODULES]
    return sorted(FEATURES.values(), key=lambda feature: modules.index(feature.module))


def _cell(feature: Feature, name: str, notes: list[str]) -> str:
    """Return what a format makes of a feature, with the number of its note, which is added where it is new."""
    word = _YES
    note = feature.notes.get(name)
    if name in feature.refusals:
        word = _NOT_OFFERED
        note = f"“{feature.refusals[name].sentence}”"
    elif name in feature.absent:
        word = _NONE
        note = feature.absent[name]
    if note is None:
        return word
    note = note[0].upper() + note[1:]
    if note not in notes:
        notes.append(note)
    return f"{word} ({notes.index(note) + 1})"


def _tests() -> Iterator[str]:
    files = [f"`tests/contract/{module.__name__.rpartition('.')[2]}.py`" for module in MODULES]
    yield f"Tried in {' and '.join(files)}."
    yield ""
    yield _ROWS


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
