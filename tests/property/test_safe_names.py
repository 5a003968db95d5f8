"""Names that producers choose become names of folders and of tables that are apart, and that engines see."""

import re
from collections import defaultdict
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.config.safe_names import make_folder_name, make_identifier, make_namespace_folder_name
from headrace.writer.config.sections.routing import fill_identifier, fill_location
from tests.support.example_counts import share

# What names may be made of to meet: letters that stay, those that do not, and pieces of results.
PIECES = (
    "a", "A", "x", "b1", "_", "__", "___", ".", "..", "-", "/", "\\", "%", "%2F", " ", "\t", "\n", "\0", "é", "e\u0301",
    "\u200b", "\ud800", "=", "?", "default", "_late", "_dead_letters", "_headrace", "._COPYING_", "0123456789abcdef",
    "_0123456789abcdef", "_0123456789ABCDEF", "b" * 90,
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text(max_size=12),
    st.text(st.characters(), min_size=150, max_size=300),
)
SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")


@st.composite
def names_that_may_meet(draw: st.DrawFn) -> set[str]:
    """Draw names with all that they become: a producer may choose the result of another's name."""
    names = set(draw(st.lists(TEXTS, min_size=1, max_size=6)))
    made = {make(name) for name in names for make in (make_folder_name, make_identifier)}
    return names | made | {name.replace("/", ".") for name in names} | {name.replace(".", "_") for name in names}


@settings(max_examples=share(800))
@given(names=names_that_may_meet())
def test_each_name_has_a_folder_and_an_identifier_of_its_own(names: set[str]) -> None:
    for make in (make_folder_name, make_namespace_folder_name, make_identifier):
        results = defaultdict(set)
        for name in names:
            results[make(name)].add(name)
        assert {made: of for made, of in results.items() if len(of) > 1} == {}


@settings(max_examples=share(800))
@given(name=TEXTS)
def test_a_folder_is_one_segment_that_every_engine_sees(name: str) -> None:
    for folder in (make_folder_name(name), make_namespace_folder_name(name)):
        assert SEGMENT.fullmatch(folder), folder
        assert PurePosixPath("/lake", folder).parts == ("/", "lake", folder)
        assert len(f"{folder}_dead_letters".encode()) <= 255
        assert not folder.endswith((".", "._COPYING_"))
        assert not folder.casefold().endswith("_late"), "where late rows of another name would lie"
    identifier = make_identifier(name)
    assert IDENTIFIER.fullmatch(identifier), identifier
    assert len(identifier) <= 220


@settings(max_examples=share(400))
@given(names=names_that_may_meet(), prefixes=st.lists(TEXTS, max_size=3))
def test_full_names_have_locations_and_identifiers_of_their_own(names: set[str], prefixes: list[str]) -> None:
    full = {*names, *(f"{prefix}.{name}" for prefix in prefixes for name in names)}
    for fill, template in (
        (fill_location, "/lake/{namespace}/{name}"),
        (fill_location, "/lake/{full_name}"),
        (fill_identifier, "{namespace}.{name}"),
        (fill_identifier, "shop.t_{full_name}"),
    ):
        results = defaultdict(set)
        for name in full:
            results[fill(template, name)].add(name)
        assert {made: of for made, of in results.items() if len(of) > 1} == {}, template


@settings(max_examples=share(400))
@given(words=st.lists(st.from_regex(r"\A[A-Za-z0-9]{1,8}(_[A-Za-z0-9]{1,8})?\Z"), min_size=1, max_size=4))
def test_a_name_that_engines_take_stays_as_it_is(words: list[str]) -> None:
    name = ".".join(words)
    assert make_folder_name(name) == name
    assert make_identifier(name).split("__") == words


@pytest.mark.parametrize("name", [".", "..", "", "/", "\0", "_x", ".x", " x"])
def test_a_name_without_letters_takes_no_real_ones_folder(name: str) -> None:
    assert make_folder_name(name) not in {"x", "default", "_", name}
