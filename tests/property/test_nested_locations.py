"""Which location lies inside which, and which folders are tables, against a definition by lists of names."""

from hypothesis import given, strategies as st

from headrace.writer.storage.nesting import (
    Location,
    ancestors,
    enclosing_folders,
    find_nestings,
    is_below,
    lies_inside,
    location_of,
    parts,
    table_folders as tables,
)

NAMES = st.lists(st.sampled_from(["lake", "lake2", "a", "bucket=a", "hour=x", "_a", ".b", "metadata"]), max_size=4)
ROOTS = st.sampled_from(["", "file://", "s3://b", "s3://b2"])
DETOURS = st.lists(st.sampled_from(["/.", "/x/..", "/x/y/../..", "/"]), max_size=3)


def shown(root: str, names: list[str], detours: list[str]) -> str:
    """Write a location as a person may: with detours between its names, and a slash at its end."""
    steps = [f"/{name}" for name in names]
    for index, detour in enumerate(detours):
        steps.insert(min(len(steps), index * 2), detour)
    return root + "".join(steps)


@given(ROOTS, ROOTS, NAMES, NAMES, DETOURS, DETOURS)
def test_one_location_is_inside_another_by_its_names(root, other, inner, outer, some, more) -> None:
    one_store = root.removeprefix("file://") == other.removeprefix("file://")
    expected = one_store and inner[: len(outer)] == outer and not any(n[0] in "_." for n in inner[len(outer) :])
    one, two = parts(shown(root, inner, some)), parts(shown(other, outer, more))
    assert lies_inside(one, two) == expected
    assert (two in enclosing_folders(one)) == (expected and one != two)
    assert parts(location_of(one)) == one


@given(st.lists(st.tuples(NAMES, st.booleans(), st.booleans()), max_size=4))
def test_a_new_location_is_refused_on_whichever_side_it_is(places) -> None:
    own = [
        Location(f"{n}", frozenset({parts("/" + "/".join(names))}), own, new=own and new)
        for n, (names, own, new) in enumerate(places)
    ]
    found = {frozenset((one.inner.name, one.outer.name)): one for one in find_nestings(own)}
    for a in own:
        for b in own:
            inside = a is not b and lies_inside(*a.forms, *b.forms)
            if inside and (a.new or b.new):
                assert found[frozenset((a.name, b.name))].refused
            elif inside and a.own:
                assert not found[frozenset((a.name, b.name))].refused
    assert all(value.inner.own or value.outer.own for value in found.values())


FILES = st.sampled_from([
    "a.parquet", "_delta_log/0.json", "_headrace/log/0.json", "metadata/v1.metadata.json",
    "metadata/00001-5f.gz.metadata.json", "metadata/v1.metadata.json.gz", "metadata/snap-1.avro", "metadata",
    "_delta_log", "v1.metadata.json", "metadata/deep/v1.metadata.json",
])  # fmt: skip
LOGS = ("_delta_log/0.json", "_headrace/log/0.json", "metadata/v1.metadata.json", "metadata/00001-5f.gz.metadata.json",
        "metadata/v1.metadata.json.gz")  # fmt: skip


@given(st.lists(st.tuples(NAMES, FILES), max_size=8))
def test_a_folder_is_a_table_if_and_only_if_a_log_stands_in_it(objects) -> None:
    paths = ["/".join([*folders, file]) for folders, file in objects]
    found = tables(paths)
    assert found >= {"/".join(folders) for folders, file in objects if file in LOGS}
    for path in paths:
        above = ["/".join(path.split("/")[:n]) for n in range(path.count("/") + 1)]
        assert list(ancestors(path)) == above
        assert is_below(path, found) == any(folder in found for folder in above)
    for folder in found:
        start = f"{folder}/" if folder else ""
        inside = [path.removeprefix(start) for path in paths if path.startswith(start)]
        assert any(path in LOGS or path.endswith(".metadata.json") for path in inside)


def test_prefixes_of_s3_without_a_slash_are_siblings() -> None:
    lake = parts("s3://b/lake")
    assert not lies_inside(parts("s3://b/lake2"), lake)
    assert not lies_inside(parts("s3://b2/lake/x"), lake)
    assert lies_inside(parts("s3://b/lake/x/"), lake)
    assert not lies_inside(parts("/b/lake/x"), lake)
    assert list(enclosing_folders(parts("s3://b/lake/_x/y/z"))) == [parts("s3://b/lake/_x/y"), parts("s3://b/lake/_x")]
    assert list(enclosing_folders(parts("s3://b/lake/x"))) == [lake, ("s3", "b")]
