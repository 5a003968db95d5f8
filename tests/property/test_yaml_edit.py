"""Entries that are set in the text of a YAML mapping: the text holds them, and all else as it was."""

from math import inf
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from headrace.writer.preflight.testing.yaml_edit import EditRefused, set_entries

KEYS = st.text("abcé🙂: #'-", min_size=1, max_size=4)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("ab\n:# é🙂'\"\\", max_size=12)
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
MAPPINGS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(
    before=MAPPINGS,
    entries=MAPPINGS,
    above=MAPPINGS,
    flow=st.sampled_from([None, True, False]),
    columns=st.integers(2, 6),
)
def test_the_text_holds_the_entries_and_what_it_had(
    before: dict[str, Any], entries: dict[str, Any], above: dict[str, Any], flow: bool | None, columns: int
) -> None:
    document = {**above, "expect": before, "last": 1}
    text = yaml.safe_dump(document, default_flow_style=flow, indent=columns, sort_keys=False, allow_unicode=True)
    edited = set_entries(text, ["expect"], entries)
    assert yaml.safe_load(edited) == {**document, "expect": {**before, **entries}}
    if before | entries == before:
        assert edited == text


@given(entries=st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
def test_an_empty_text_becomes_the_mapping(entries: dict[str, Any]) -> None:
    assert yaml.safe_load(set_entries("", [], entries)) == entries
    assert yaml.safe_load(set_entries("# alone\n", ["expect"], entries)) == {"expect": entries}


@pytest.mark.parametrize(
    ("text", "entries", "edited"),
    [
        ("a: 1  # one\nb: 2\n", {"a": 3}, "a: 3  # one\nb: 2\n"),
        ("a: |\n  x\n\n# of b\nb: 2\n", {"a": "y"}, "a: y\n\n# of b\nb: 2\n"),
        (
            "a:\n  b: 0x10\n  c: 1e3\n\nd: 1\n",
            {"a": {"b": 16, "c": 5, "d": 6}},
            "a:\n  b: 0x10\n  c: 5\n  d: 6\n\nd: 1\n",
        ),
        ("a: {b: 0x10, c: 1e3}\n", {"a": {"b": 16, "c": "1e3", "d": 6}}, "a: {b: 0x10, c: 1e3, d: 6}\n"),
        ("a: 1 # one", {"b": {"c": 2}}, "a: 1 # one\nb: {c: 2}"),
        ("a:\n", {"a": 2}, "a: 2\n"),
        ("a:\n- 1\n- 2\nb: 3\n", {"a": [1]}, "a: [1]\nb: 3\n"),
        ("{a: 1}\n", {"b": {"c": "x\ny", "d": inf}}, '{a: 1, b: {c: "x\\ny", d: .inf}}\n'),
        ("a: 1\n", {"a": "x\n"}, 'a: "x\\n"\n'),
    ],
)
def test_numbers_comments_and_layout_stay(text: str, entries: dict[str, Any], edited: str) -> None:
    assert set_entries(text, [], entries) == edited


@pytest.mark.parametrize(
    "text", ["a: &x {b: 1}\nc: *x\n", "a: 1\na: 2\n", "z: &x {a: 1}\n<<: *x\nb: 2\n"], ids=["alias", "twice", "merge"]
)
def test_a_text_that_cannot_be_told_apart_is_refused(text: str) -> None:
    with pytest.raises(EditRefused):
        set_entries(text, [], {"a": {"b": 2}, "c": {"b": 3}})
