"""Lists of a bucket by obstore, which asks for their pages itself: how many it asked for is reckoned from the names."""

from dataclasses import dataclass
from typing import Any

import obstore

from headrace.writer.core.errors import panics_as_errors
from headrace.writer.storage.clouds.bucket_clients import FAILURES, BucketClients
from headrace.writer.storage.requests.counts import list_requests
from headrace.writer.storage.requests.failures import RequestFailed
from headrace.writer.storage.requests.sender import RequestSender, outcome_of


@dataclass(frozen=True)
class Folder:
    """What lies directly in a folder. `objects`: of obstore; `folders`: their keys. `requests`: sent for it."""

    objects: list[Any]
    folders: list[str]
    requests: int


def ask_folder(clients: BucketClients, key: str, *, repeats: bool) -> Folder:
    """Return what is in a folder; all pages are one call. `repeats`: a page that fails is asked for again.

    Raises RequestFailed.
    """
    try:
        with panics_as_errors("obstore"):
            client = clients.repeat() if repeats else clients.ask()
            listed = obstore.list_with_delimiter(client, key or None)
    except FAILURES as error:
        raise clients.read_failure(error) from None
    objects = list(listed["objects"])
    folders = list(listed["common_prefixes"])
    return Folder(objects, folders, list_requests(len(objects) + len(folders), clients.page_names_max))


def list_folder(clients: BucketClients, sender: RequestSender, path: str, key: str) -> Folder:
    """Return what is in a folder, as far as it takes. Raises StoreError."""
    repeats = False

    def ask() -> Folder:
        nonlocal repeats
        try:
            return ask_folder(clients, key, repeats=repeats)
        except RequestFailed as error:
            # To begin anew at each page that is throttled may never come to an end.
            repeats = repeats or error.is_later_page
            raise

    folder = sender.ask("list", path, ask)
    sender.count_unpaced("list", path, folder.requests - 1)
    return folder


def list_below(clients: BucketClients, sender: RequestSender, path: str, key: str) -> list[Any]:
    """Return all objects below a folder, page by page: one that fails is asked for again. Raises StoreError."""
    entries = list[Any]()
    pages: Any = None

    def ask() -> list[Any]:
        nonlocal pages
        try:
            with panics_as_errors("obstore"):
                if pages is None:
                    last = entries[-1]["path"] if entries else None
                    pages = obstore.list(clients.ask(), key or None, offset=last, chunk_size=clients.page_names_max)
                page = next(pages, None)
        except FAILURES as error:
            # A stream that failed is at its end.
            pages = None
            failure = clients.read_failure(error)
            sender.count("list", path, outcome_of(failure))
            raise failure from None
        # A full page that was the last one said so: then nothing was asked.
        if page or not entries:
            sender.count("list", path)
        return list(page or ())

    while True:
        page = sender.retry("list", path, ask)
        entries += page
        if len(page) < clients.page_names_max:
            return entries
