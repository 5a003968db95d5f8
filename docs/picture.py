"""Draws docs/images/demo.svg, the demo as a terminal shows it at its end, from a real run. `make demo-picture`."""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from headrace.writer.demo.main import show
from headrace.writer.demo.status_view import View, render
from headrace.writer.demo.terminal import Screen

COLUMNS, EVENTS = 100, 200_000
# No fonts from the internet: a reader's own do.
FORMAT = re.sub(r"@font-face {{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Still(Screen):
    """A screen that is recorded, with the status as it was last."""

    def __init__(self) -> None:
        super().__init__(
            Console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor", record=True)
        )
        self._view: View | None = None
        self.write(Text.assemble(("$ ", "green"), ("headrace demo\n", "bold")))

    @contextmanager
    def live(self) -> Iterator[None]:
        """Record the status when the block ends."""
        yield
        if self._view is not None:
            self.write(render(self._view))

    def show(self, view: View) -> None:
        """Remember the status."""
        self._view = view

    def svg(self) -> str:
        """Return the picture."""
        return self.console.export_svg(title="headrace demo", theme=MONOKAI, code_format=FORMAT, unique_id="demo")


def main() -> None:
    """Run the demo and write the picture. A demo that does not add up leaves the old one."""
    screen = Still()
    if code := show(EVENTS, None, hold=False, screen=screen):
        sys.exit(code)
    (Path(__file__).parent / "images" / "demo.svg").write_text(screen.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
