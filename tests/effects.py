"""Lets a process die, in this one, after so many of its effects on local storage and on an SQL catalog."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from writer.storage.local import LocalStore


class Died(BaseException):
    """The process is gone, at this moment."""


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """Die at the effect after so many, from the first step of the iterator to the second."""
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
        for name in ("put", "put_if_absent", "move", "delete"):
            patched.setattr(LocalStore, name, counted(getattr(LocalStore, name)))
        for name in ("create_namespace", "commit_table"):
            patched.setattr(SqlCatalog, name, counted(getattr(SqlCatalog, name)))
        yield
    yield
