"""obstore's clients of one bucket, by how they send, and what they raise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from obstore.exceptions import BaseError

from headrace.writer.core.errors import LibraryPanicked
from headrace.writer.storage.requests.failures import RequestFailed

# What obstore raises inside `panics_as_errors`: its own exceptions, and Python's; a writer that closes raises a bare
# OSError.
FAILURES = (BaseError, OSError, ValueError, LibraryPanicked)


@dataclass(frozen=True)
class BucketClients:
    """Each client is opened when it is asked for.

    `ask`: sends a request once. `put`: the same, with time for a body of so many bytes. `repeat`: tries each request
    again by itself, with time for parts. `read_failure`: says what an exception of obstore means. `page_names_max`: so
    many names are on a page of a list at most.
    """

    ask: Callable[[], Any]
    put: Callable[[int], Any]
    repeat: Callable[[], Any]
    read_failure: Callable[[Exception], RequestFailed]
    page_names_max: int
