"""The demo's terminal output: lines that stay and, on a terminal, a live status below them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.writer.demo.status_view import View, render, sentence
from headrace.writer.output.tables import show

# The width of a line's text, before its seconds.
_LABEL = 64


class Screen:
    """One console. Without a terminal nothing moves: a line for each commit takes the status' place."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._line = time.monotonic()
        self._live: Live | None = None
        self._printed_version: int | None = None

    @property
    def moves(self) -> bool:
        """Whether lines that were written can be written over; FORCE_COLOR makes no terminal of a pipe."""
        return self.console.is_interactive and self.console.file.isatty()

    def write(self, renderable: RenderableType = "", *, style: str = "") -> None:
        """Write something that stays. Text is never cut, and its brackets are no markup."""
        if isinstance(renderable, str | Text):
            text = Text(renderable, style) if isinstance(renderable, str) else renderable
            self.console.print(text, soft_wrap=True)
            return
        show(renderable, self.console)

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Show what goes on (on a terminal), then that it is done."""
        self._line = time.monotonic()
        if self.moves:
            with self.console.status(Text(doing)):
                yield
        else:
            yield
        self.finish_step(done)

    def finish_step(self, label: str, *, good: bool = True) -> None:
        """Show that something is done, and whether it is as it should be; its seconds count from the line before."""
        now = time.monotonic()
        width = min(_LABEL, self.console.width - 11)
        self.write(Text.assemble(self.mark(good=good), f" {label:<{width}}", (f"{now - self._line:6.1f} s", "dim")))
        self._line = now

    def mark(self, *, good: bool = True) -> Text:
        """Return the sign of what is done, or of what does not add up."""
        has_signs = self.console.encoding.startswith("utf")
        if good:
            return Text("✓" if has_signs else "ok", "green")
        return Text("✗" if has_signs else "!!", "bold red")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show a status below the lines until the block ends; its last state stays."""
        if not self.moves:
            yield
            return
        with Live(console=self.console, auto_refresh=False) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def show(self, view: View) -> None:
        """Redraw the status; without a terminal, print one line if there was a commit since the last one."""
        if self._live is not None:
            self._live.update(render(view), refresh=True)
        elif not self.moves and view.version not in (None, self._printed_version):
            self._printed_version = view.version
            self.write(f"  {sentence(view)}")
