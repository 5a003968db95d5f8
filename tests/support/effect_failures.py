"""Lets a process die, in this one, after so many of its effects on storage and on a catalog."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headrace.writer.storage.local import LocalStore

_ANY: Mapping[Any, Sequence[str]] = {
    LocalStore: ("put", "put_if_absent", "move", "delete"),
    SqlCatalog: ("create_namespace", "commit_table"),
}


class Died(BaseException):
    """The process is gone, at this moment."""


def die_after(
    monkeypatch: pytest.MonkeyPatch, after: int, effects: Mapping[Any, Sequence[str]] = _ANY
) -> Iterator[None]:
    """Die at the effect after so many, from the first step of the iterator to the second.

    `effects`: names of methods, by who has them; default: of any local store and SQL catalog.
    """
    done = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            if done >= after:
                raise Died
            done += 1
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for owner, names in effects.items():
            for name in names:
                patched.setattr(owner, name, counted(getattr(owner, name)))
        yield
    yield
