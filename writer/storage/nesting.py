"""Finds folders that are tables of their own, and locations inside others. Pure.

A table's readers and vacuum walk its whole folder, but pass over names that begin with `_` or `.`.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

METADATA = "metadata"  # folder of an Iceberg table
MARKS = ("_delta_log", "_headrace")  # folders of a Delta table, and of one that headrace writes
_ICEBERG = re.compile(r"\.metadata\.json(\.gz)?$")

Parts = tuple[str, ...]  # of a location


def is_iceberg(name: str) -> bool:
    """Return whether a file of a folder `metadata` makes its parent an Iceberg table."""
    return bool(_ICEBERG.search(name))


def table_folders(paths: Iterable[str]) -> frozenset[str]:
    """Return the folders that are tables, given the paths of all objects; "" is the folder that was listed."""
    found = set()
    for path in paths:
        *folders, name = path.split("/")
        marks = {at for at, folder in enumerate(folders) if folder in MARKS}
        if folders and folders[-1] == METADATA and is_iceberg(name):
            marks.add(len(folders) - 1)
        found |= {"/".join(folders[:at]) for at in marks}
    return frozenset(found)


def is_below(path: str, folders: Collection[str]) -> bool:
    """Return whether an object or folder lies below one of the folders."""
    return any(folder in folders for folder in ancestors(path))


def ancestors(path: str) -> Iterator[str]:
    """Yield the folders above an object or folder, the outermost first; "" is the folder that was listed."""
    if path:
        yield ""
    yield from (path[:at] for at, dead_letter in enumerate(path) if dead_letter == "/")


def parts(location: str) -> Parts:
    """Return a location in a form that can be compared: the scheme, a bucket, then the names of its path."""
    root: Parts = ("",)
    path = location.removeprefix("file://")
    if location.startswith("s3://"):
        bucket, _, path = location.removeprefix("s3://").partition("/")
        root = ("s3", bucket)
    return (*root, *filter(None, posixpath.normpath(f"/{path}").split("/")))


def location_of(parts: Parts) -> str:
    """Return a location as a store takes it."""
    scheme, *names = parts
    return f"{scheme}://{'/'.join(names)}" if scheme else f"/{'/'.join(names)}"


def lies_inside(inner: Parts, outer: Parts) -> bool:
    """Return whether a location is another one, or is inside it where readers and vacuum look."""
    below = inner[len(outer) :]
    return inner[: len(outer)] == outer and not any(name.startswith(("_", ".")) for name in below)


def around(inner: Parts) -> Iterator[Parts]:
    """Yield the folders, above a location, that it would lie inside if they were tables. Of S3, down to the bucket."""
    least = 2 if inner[0] else 1
    for length in range(len(inner) - 1, least - 1, -1):
        if not lies_inside(inner, inner[:length]):
            return
        yield inner[:length]


@dataclass(frozen=True)
class Location:
    """A folder that belongs to one table, or to checkpoints."""

    name: str  # with its article, owner and path
    forms: frozenset[Parts]  # as it is written, and with links resolved
    own: bool = False  # of the pipeline that starts
    new: bool = False  # nothing is there yet
    disposable: bool = False  # checkpoints: they may be removed from a lake that exists, and are new again


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


def nested(locations: Sequence[Location]) -> list[Nesting]:
    """Return which locations of the pipeline that starts are inside others, and which others inside its new ones."""
    found: list[Nesting] = []
    for inner, outer in permutations(locations, 2):
        one = Nesting(inner, outer)
        inside = any(lies_inside(a, b) for a in inner.forms for b in outer.forms)
        if inside and (one.refused or inner.own) and not (one.same and Nesting(outer, inner) in found):
            found.append(one)
    return found
