"""Checks by trying it whether a store has what the writer needs: before a start, and in `headrace validate`."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.storage.base import NotExclusive, Store, StoreError, Unanswered

_RACERS = 4
_CONTENT = b"headrace\n"


class ProbeFailed(ConfigError):
    """A store does not do what the writer needs of it."""


class StoreSilent(HeadraceError):
    """A store gave no answer for as long as it was asked; it may later."""


def probe(store: Store, *, exclusive: bool) -> None:
    """Write an object, read it, and remove it. Raises ProbeFailed, StoreSilent.

    `exclusive`: also put it where one is, and several at once where none is. All but one of them must be refused, or
    two writers would both believe that theirs is the commit.
    """
    written_name = f"_headrace-probe-{secrets.token_hex(6)}"
    raced_name = f"_headrace-probe-{secrets.token_hex(6)}"
    names = [written_name, raced_name]
    try:
        store.put(written_name, _CONTENT)
        stored = store.read(written_name)
        if stored is None or stored.content != _CONTENT:
            raise ProbeFailed(
                f"{store.location} does not give back what was written a moment ago. Choose another location."
            )
        if exclusive:
            _race(store, raced_name)
    except NotExclusive as error:
        raise ProbeFailed(f"{store.location} cannot hold a table: {error.answer}. {error.fix}") from error
    except Unanswered as error:
        # A store that does not answer this would not answer a clean-up.
        names.clear()
        raise StoreSilent(str(error)) from error
    except StoreError as error:
        raise ProbeFailed(f"{store.location} cannot be used: {error}") from error
    finally:
        for name in names:
            with suppress(OSError):
                store.delete(name)


def _race(store: Store, name: str) -> None:
    """Put one object several times, at once and once more. Raises ProbeFailed when more than one was taken."""
    contents = [b"%d" % number for number in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS) as threads:
        answers = list(threads.map(lambda content: store.put_if_absent(name, content), contents))
    winners = [content for content, is_put in zip(contents, answers, strict=True) if is_put]
    is_put_again = store.put_if_absent(name, b"again")
    stored = store.read(name)
    if len(winners) != 1 or is_put_again or stored is None or stored.content != winners[0]:
        raise ProbeFailed(
            f"{store.location} lets an object be created {len(winners) + is_put_again} times under one name, so two "
            "writers could both commit, and one of the commits would be lost. Choose a store that honours "
            "put-if-absent (If-None-Match on S3, hard links on a disk)."
        )
