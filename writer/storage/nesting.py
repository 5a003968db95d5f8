"""Finds folders that are tables of their own, and locations inside others. Pure.

A table's readers and vacuum walk its whole folder, but pass over names that begin with `_` or `.`.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from headrace.writer.storage.bucket_locations import SCHEMES

# The folder of an Iceberg table's metadata.
METADATA = "metadata"
# Folders of a Delta table, and of a table that headrace writes.
TABLE_MARKERS = ("_delta_log", "_headrace")
_ICEBERG = re.compile(r"\.metadata\.json(\.gz)?$")

# Scheme and names of a location.
Parts = tuple[str, ...]


def is_iceberg(name: str) -> bool:
    """Return whether a file of a folder `metadata` makes its parent an Iceberg table."""
    return bool(_ICEBERG.search(name))


def table_folders(paths: Iterable[str]) -> frozenset[str]:
    """Return the folders that are tables, given the paths of all objects; "" is the folder that was listed."""
    tables = set[str]()
    for path in paths:
        *folders, name = path.split("/")
        for depth, folder in enumerate(folders):
            if folder in TABLE_MARKERS:
                tables.add("/".join(folders[:depth]))
        if folders and folders[-1] == METADATA and is_iceberg(name):
            tables.add("/".join(folders[:-1]))
    return frozenset(tables)


def is_below(path: str, folders: Collection[str]) -> bool:
    """Return whether an object or folder lies below one of the folders."""
    return any(folder in folders for folder in ancestors(path))


def ancestors(path: str) -> Iterator[str]:
    """Yield the folders above an object or folder, the outermost first; "" is the folder that was listed."""
    if path:
        yield ""
    yield from (path[:index] for index, character in enumerate(path) if character == "/")


def parts(location: str) -> Parts:
    """Return a location in a form that can be compared: the scheme, a bucket, then the names of its path."""
    root: Parts = ("",)
    path = location.removeprefix("file://")
    scheme, separator, rest = location.partition("://")
    if separator and scheme in SCHEMES:
        bucket, _, path = rest.partition("/")
        root = (scheme, bucket)
    return (*root, *filter(None, posixpath.normpath(f"/{path}").split("/")))


def location_of(parts: Parts) -> str:
    """Return a location as a store takes it."""
    scheme, *names = parts
    path = "/".join(names)
    return f"{scheme}://{path}" if scheme else f"/{path}"


def lies_inside(inner: Parts, outer: Parts) -> bool:
    """Return whether a location is another one, or is inside it where readers and vacuum look."""
    below = inner[len(outer) :]
    return inner[: len(outer)] == outer and not any(name.startswith(("_", ".")) for name in below)


def enclosing_folders(inner: Parts) -> Iterator[Parts]:
    """Yield the folders, above a location, that it would lie inside if they were tables. In a bucket, down to it."""
    length_min = 2 if inner[0] else 1
    for length in range(len(inner) - 1, length_min - 1, -1):
        if not lies_inside(inner, inner[:length]):
            return
        yield inner[:length]


@dataclass(frozen=True)
class Location:
    """A folder that belongs to one table, or to checkpoints.

    `name`: with its article, owner and path. `forms`: as it is written, and with links resolved. `own`: of the pipeline
    that starts. `new`: nothing is there yet. `disposable`: checkpoints, which may be removed from a lake that exists,
    and are new again.
    """

    name: str
    forms: frozenset[Parts]
    own: bool = False
    new: bool = False
    disposable: bool = False


@dataclass(frozen=True)
class Nesting:
    """One location inside another."""

    inner: Location
    outer: Location

    @property
    def same(self) -> bool:
        """Whether both are one folder."""
        return not self.inner.forms.isdisjoint(self.outer.forms)

    @property
    def refused(self) -> bool:
        """Whether a start would make it so."""
        return self.inner.new or (self.outer.new and (self.same or not self.outer.disposable))

    def __str__(self) -> str:
        if self.same:
            return f"{self.inner.name} and {self.outer.name} are one folder"
        return f"{self.inner.name} is inside {self.outer.name}, where its files are taken for those of the other"


def find_nestings(locations: Sequence[Location]) -> list[Nesting]:
    """Return which locations of the pipeline that starts are inside others, and which others inside its new ones."""
    nestings: list[Nesting] = []
    for inner, outer in permutations(locations, 2):
        nesting = Nesting(inner, outer)
        if not _has_form_inside(inner, outer) or not (nesting.refused or inner.own):
            continue
        # Two names of one folder are told once.
        if nesting.same and Nesting(outer, inner) in nestings:
            continue
        nestings.append(nesting)
    return nestings


def _has_form_inside(inner: Location, outer: Location) -> bool:
    return any(any(lies_inside(form, outer_form) for outer_form in outer.forms) for form in inner.forms)
