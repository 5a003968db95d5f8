"""`headrace pause` and `headrace resume`."""

import getpass
import socket
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import Console

from writer.care import pausing
from writer.config import Config
from writer.surface import lines
from writer.tables.formats import main_table


def paused(
    config: Config, names: Sequence[str], *, by: str | None, reason: str, now: datetime, as_json: bool, out: Console
) -> int:
    """Ask for a pause of the pipelines, and show the one that stands. Raises StoreError."""
    who = by or f"{getpass.getuser()}@{socket.gethostname()}"
    told = {name: pausing.pause(main_table(name, config).store, who, reason, now) for name in names}
    if as_json:
        lines.emit_whole({name: {"paused": asdict(one), "new": new} for name, (one, new) in told.items()})
        return 0
    for name, (one, new) in told.items():
        after = "A driver finishes its batch first. `headrace resume` ends it." if new else "It stays so."
        lines.sentence(out, f"{name}: {'' if new else 'already '}{one.words}. {after}")
    return 0


def resumed(config: Config, names: Sequence[str], *, as_json: bool, out: Console) -> int:
    """End the pause of the pipelines, and show what stood. Raises StoreError."""
    told = {name: pausing.resume(main_table(name, config).store) for name in names}
    if as_json:
        lines.emit_whole({name: {"was_paused": None if one is None else asdict(one)} for name, one in told.items()})
        return 0
    for name, one in told.items():
        what = "it was not paused" if one is None else f"it was {one.words}; a driver goes on within seconds"
        lines.sentence(out, f"{name}: {what}.")
    return 0
