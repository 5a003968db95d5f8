"""The entry that accepts what other clients did: the table stands as it is, and the pipeline goes on from there.

It moves no file. Whoever reads the log finds the change answered; what it did to the rows is a term of the account.
"""

from writer.tables.append import Appender
from writer.tables.changes import Acceptance
from writer.tables.entry import accept_said
from writer.tables.errors import CommitFailed
from writer.tables.snapshot import PipelineSnapshot
from writer.tables.vintage import ANSWERED


def accept(end: Appender, snapshot: PipelineSnapshot, wanted: Acceptance) -> int:
    """Append the entry, on exactly this snapshot. Returns where it stands. Raises CommitFailed."""

    def check(newest: PipelineSnapshot) -> None:
        if newest.state.place != snapshot.state.place:
            raise CommitFailed(
                f"the table at {end.location} was written to meanwhile (version {newest.version}); nothing was "
                "accepted. Stop who writes it, then look again."
            )

    format_ = max(snapshot.format, ANSWERED)
    values = {f"{end.pipeline}/epoch": snapshot.epoch + 1, f"{end.pipeline}/format": format_}
    return end.append(snapshot, [], values, accept_said(wanted), check, moment="accept")
