"""The lists of the servers that play clouds: pages in any cut are one list, and folders stand in it once."""

from hypothesis import given, strategies as st

from tests.servers.cloud_objects import ListQuestion, MemoryBackend, NewObject

NAMES = st.lists(st.text("ab/é", min_size=1, max_size=6), unique=True, max_size=30)


def backend_of(names: list[str]) -> MemoryBackend:
    backend = MemoryBackend()
    backend.create_bucket("lake")
    for name in names:
        backend.put(NewObject("lake", name, b""))
    return backend


def entries(backend: MemoryBackend, size_max: int, **question: str) -> list[str]:
    """Return the names and folders of all pages. A page has no more than `size_max`, and none but the last is empty."""
    listed: list[str] = []
    token = ""
    while True:
        page = backend.list("lake", ListQuestion(**question, token=token, size_max=size_max))
        names = [*(stored.name for stored in page.objects), *page.folders]
        assert len(names) <= size_max
        assert names or not page.token
        listed += sorted(names, key=str.encode)
        if not page.token:
            return listed
        token = page.token


def expected(names: list[str], prefix: str, delimiter: str) -> list[str]:
    listed: set[str] = set()
    for name in names:
        rest = name[len(prefix) :]
        if name.startswith(prefix) and delimiter and delimiter in rest:
            listed.add(prefix + rest.partition(delimiter)[0] + delimiter)
        elif name.startswith(prefix):
            listed.add(name)
    return sorted(listed, key=str.encode)


@given(names=NAMES, prefix=st.sampled_from(["", "a", "a/", "b/a"]), delimiter=st.sampled_from(["", "/"]),
       size_max=st.integers(1, 5))  # fmt: skip
def test_pages_of_any_size_are_one_list(names: list[str], prefix: str, delimiter: str, size_max: int) -> None:
    assert entries(backend_of(names), size_max, prefix=prefix, delimiter=delimiter) == expected(
        names, prefix, delimiter
    )


@given(names=NAMES, begin=st.text("ab/é", max_size=3), size_max=st.integers(1, 5))
def test_a_list_begins_with_a_name_or_behind_it(names: list[str], begin: str, size_max: int) -> None:
    backend = backend_of(names)
    ordered = sorted(names, key=str.encode)
    assert entries(backend, size_max, start=begin) == [name for name in ordered if name.encode() >= begin.encode()]
    assert entries(backend, size_max, after=begin) == [name for name in ordered if name.encode() > begin.encode()]
