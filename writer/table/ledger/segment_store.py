"""Stores ledger segments beside the table's log, one for each clean-up, beyond the log's retention.

A page is put once, under the number of its first version, or not at all: of two writers that write the next page at
once one's stands, and a reader begins where it ends. Each table id has a folder: a table made anew begins a new
book.
"""

import json
from collections.abc import Iterable, Sequence

from writer.storage.base import Store
from writer.table.ledger.segment import Known, LedgerSegment, LedgerUnreadable, from_json, runs, segments, to_json
from writer.table.log.log import Action

FOLDER = "_headrace/ledger"  # Delta's readers and VACUUM pass over names that begin with an underscore


class LedgerStore:
    """The pages of one table."""

    def __init__(self, store: Store, table_id: str, pipeline: str) -> None:
        """Open the book of a table; `store` is the table's."""
        self._store, self._folder = store, f"{FOLDER}/{table_id}"
        self._table_id, self._pipeline = table_id, pipeline

    def pages(self) -> list[LedgerSegment]:
        """Return the pages, oldest first. Raises LedgerUnreadable, OSError."""
        return [self._page(name) for name in self._names()]

    def last(self) -> int:
        """Return the newest version that a page holds; -1 when there is none. Raises as `pages` does."""
        names = self._names()
        return self._page(names[-1]).last if names else -1

    def write(self, entries: Iterable[tuple[int, Sequence[Action]]], known: Known) -> None:
        """Write these entries as the next segment, and one more after each missing version. Raises OSError.

        `known`: version → rows of each file that it names.
        """
        for one in runs(segments(entries, self._pipeline, known)):
            page = json.dumps(to_json(one, self._pipeline, self._table_id), separators=(",", ":"), ensure_ascii=False)
            if not self._store.put_if_absent(f"{self._folder}/{one.first:020}.json", page.encode()):
                return  # another writer's stands there; it says the same, and perhaps more

    def _names(self) -> list[str]:
        return sorted(name for name in self._store.list(self._folder) if name.endswith(".json"))

    def _page(self, name: str) -> LedgerSegment:
        found = self._store.read(f"{self._folder}/{name}")
        where = self._store.path(f"{self._folder}/{name}")
        try:
            raw = json.loads(found.content if found else b"")
        except ValueError as error:
            raise LedgerUnreadable(f"{where} is not JSON: {error}. Restore it from a backup.") from error
        return from_json(raw, where)
