"""Checks by trying it whether a store has what the writer needs: before a start, and in `headrace validate`."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from writer.core.errors import ConfigError, HeadraceError
from writer.storage.base import NotExclusive, Store, StoreError, Unanswered

_RACERS = 4


class ProbeFailed(ConfigError):
    """A store does not do what the writer needs of it."""


class StoreSilent(HeadraceError):
    """A store gave no answer for as long as it was asked; it may later."""


def probe(store: Store, *, exclusive: bool) -> None:
    """Write an object, read it, and remove it. Raises ProbeFailed, StoreSilent.

    `exclusive`: also put it where one is, and several at once where none is. All but one of them must be refused, or
    two writers would both believe that theirs is the commit.
    """
    fresh, entry = names = [f"_headrace-probe-{secrets.token_hex(6)}" for _ in range(2)]
    try:
        store.put(fresh, b"headrace\n")
        found = store.read(fresh)
        if found is None or found.content != b"headrace\n":
            raise ProbeFailed(
                f"{store.location} does not give back what was written a moment ago. Choose another location."
            )
        if exclusive:
            _race(store, entry)
    except NotExclusive as error:
        raise ProbeFailed(f"{store.location} cannot hold a table: {error.answer}. {error.fix}") from error
    except Unanswered as error:
        names.clear()  # a store that does not answer this would not answer a clean-up
        raise StoreSilent(str(error)) from error
    except StoreError as error:
        raise ProbeFailed(f"{store.location} cannot be used: {error}") from error
    finally:
        for name in names:
            with suppress(OSError):
                store.delete(name)


def _race(store: Store, name: str) -> None:
    """Put one object several times, at once and once more. Raises ProbeFailed when more than one was taken."""
    contents = [b"%d" % n for n in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS) as threads:
        won = list(threads.map(lambda content: store.put_if_absent(name, content), contents))
    taken = [content for content, mine in zip(contents, won, strict=True) if mine]
    again = store.put_if_absent(name, b"again")
    found = store.read(name)
    if len(taken) != 1 or again or found is None or found.content != taken[0]:
        raise ProbeFailed(
            f"{store.location} lets an object be created {len(taken) + again} times under one name, so two writers "
            "could both commit, and one of the commits would be lost. Choose a store that honours put-if-absent "
            "(If-None-Match on S3, hard links on a disk)."
        )
