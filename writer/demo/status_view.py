"""What the demo's screen shows: `headrace status` of the writer, and beside it what only the demo knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from headrace.writer.output import status_screen

# A terminal echoes ^C at the end of the last line. One more line would break the redrawing.
_ECHO_WIDTH = 2


@dataclass(frozen=True)
class View:
    """What is to be seen at a moment."""

    # What the demo does.
    title: str
    pipeline: str
    # Events that the broker acknowledged, and those that will be sent; None: the demo sends none any more.
    produced: int | None
    total: int
    # The pipeline's part of the writer's `/status`; None: it does not answer yet.
    status: Mapping[str, Any] | None = None

    @property
    def version(self) -> int | None:
        """The version of the table's last commit; None: there is none."""
        if self.status is None or self.status["last_commit"] is None:
            return None
        return int(self.status["last_commit"]["version"])


def render(view: View) -> RenderableType:
    """Draw the demo's own line, and below it the status as `headrace status` draws it."""
    head = Text.assemble(("demo", "bold"), "  ", (view.title, "bold cyan"))
    if view.produced is not None:
        head.append(f"  {view.produced:,} of {view.total:,} events produced")
    blocks: list[RenderableType] = [head]
    if view.status is not None:
        blocks.append(status_screen.block(view.pipeline, view.status))
    return Padding(Group(*blocks), (0, _ECHO_WIDTH, 0, 0))


def sentence(view: View) -> str:
    """Return the same on one line, as `headrace status --watch` prints it into a pipe; empty without a status."""
    if view.status is None:
        return ""
    text = status_screen.line(view.pipeline, view.status, view.status["at"])
    if view.produced is not None:
        text = f"produced={view.produced} of={view.total} {text}"
    return text
