"""Draws docs/images/demo.svg, the demo as a terminal shows it, from a real run of it. `make demo-picture`.

Each line that the terminal showed is drawn once, by rich; a frame of the moving picture names the lines that it shows.
Where nothing moves, and for readers who want no motion, the last frame stands.
"""

import io
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.segment import Segment
from rich.spinner import Spinner
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from writer.demo import panel
from writer.demo.main import show
from writer.demo.panel import View
from writer.demo.terminal import Screen

COLUMNS, ROWS = 100, 47
SPEED = 2.5  # times as fast as it was
STILL_S = 12.0  # how long the end stands before it begins again
FRAME_S = 0.3  # of the picture; what changes sooner is shown together
EVENTS = 200_000
CHAR, LINE, FONT, PAD, BAR = 9.03, 18.0, 15, 18, 40  # pixels
FONTS = "ui-monospace, SFMono-Regular, 'SF Mono', Menlo, 'DejaVu Sans Mono', Consolas, monospace"
THEME = TerminalTheme(
    (13, 17, 23), (201, 209, 217),
    [(13, 17, 23), (248, 81, 73), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255), (57, 197, 207),
     (177, 186, 196)],
)  # fmt: skip


@dataclass(frozen=True)
class Shot:
    """What stood on the terminal at a moment: lines that stay, and what moves below them."""

    at: float  # seconds since the demo began
    lines: int  # so many of all that were ever written
    moving: RenderableType | None


class Film(Screen):
    """A screen that remembers everything that it showed."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor"))
        self.written: list[RenderableType] = []
        self.shots: list[Shot] = []
        self._start = time.monotonic()
        self._moving: RenderableType | None = None

    def say(self, what: RenderableType = "", *, style: str = "") -> None:
        """Remember something that stays."""
        self.written.append(Text(what, style) if isinstance(what, str) else what)
        self._shoot()

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Remember what goes on, then that it is done."""
        self._line = time.monotonic()
        self._moving = Spinner("dots", Text(doing), style="green").render(0)
        self._shoot()
        yield
        self._moving = None
        self.done(done)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Remember the panel until the block ends, and that it stays."""
        yield
        if self._moving is not None:
            self.written.append(self._moving)
        self._moving = None
        self._shoot()

    def show(self, view: View) -> None:
        """Remember the panel."""
        self._moving = panel.render(view, COLUMNS)
        self._shoot()

    def _shoot(self) -> None:
        self.shots.append(Shot(time.monotonic() - self._start, len(self.written), self._moving))


def frames(film: Film) -> Iterator[tuple[float, list[list[Segment]]]]:
    """Yield the seconds of the picture at which each frame begins, and the lines that the terminal shows then."""
    console = Console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor")
    prompt = Text.assemble(("$ ", "green"), ("headrace demo", "bold"))
    last: list[list[Segment]] = []
    for i, shot in enumerate(film.shots):
        at, end = shot.at / SPEED, i == len(film.shots) - 1
        if not end and int(at / FRAME_S) == int(film.shots[i + 1].at / SPEED / FRAME_S):
            continue
        shown = [prompt, "", *film.written[: shot.lines], *([] if shot.moving is None else [shot.moving])]
        lines = [list(Segment.simplify(line)) for line in console.render_lines(Group(*shown), pad=False)][-ROWS:]
        if lines != last:
            yield at, lines
        last = lines


def draw(lines: list[list[Segment]]) -> tuple[str, list[str]]:
    """Let rich draw each line. Returns the style rules, and the text elements of each line."""
    console = Console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor", record=True)
    for line in lines:
        for segment in line:
            console.print(Text(segment.text, segment.style or Style()), end="", soft_wrap=True)
        console.print()
    styles, matrix = console.export_svg(theme=THEME, code_format="{styles}\0{matrix}", unique_id="h").split("\0")
    drawn = [""] * len(lines)
    element = re.compile(
        r'<text class="h-(r\d+)" x="([\d.]+)" y="[\d.]+" textLength="[\d.]+" clip-path="[^"]*line-(\d+)\)">(.*?)</text>'
    )
    wide = 20 * 0.61  # of a character, as rich draws it
    for style, x, number, text in element.findall(matrix):
        count = len(re.sub(r"&[^;]+;", " ", text))
        drawn[int(number)] += (
            f'<text class="{style}" x="{float(x) / wide * CHAR:g}" textLength="{count * CHAR:g}">{text}</text>'
        )
    return styles.replace(".h-", "."), drawn


def picture(film: Film) -> str:
    """Return the SVG."""
    found = list(frames(film))
    total = found[-1][0] + STILL_S
    numbers: dict[tuple[Segment, ...], int] = {}
    shown = [[numbers.setdefault(tuple(line), len(numbers)) for line in lines] for _, lines in found]
    styles, drawn = draw([list(line) for line in numbers])
    used = [f'<g id="l{i}">{texts}</g>' for i, texts in enumerate(drawn) if texts]
    rules, groups = [], []
    for i, ((at, _), lines) in enumerate(zip(found, shown, strict=True)):
        begin = at / total * 100
        until = found[i + 1][0] / total * 100 if i + 1 < len(found) else 100
        rules.append(
            f"@keyframes k{i}{{0%{{visibility:{'visible' if i == 0 else 'hidden'}}}"
            f"{begin:.3f}%{{visibility:visible}}{until:.3f}%{{visibility:hidden}}}}"
        )
        uses = "".join(f'<use href="#l{n}" y="{row * LINE:g}"/>' for row, n in enumerate(lines) if drawn[n])
        groups.append(f'<g class="f" style="animation-name:k{i}">{uses}</g>')
    width, height = COLUMNS * CHAR + 2 * PAD, ROWS * LINE + BAR + PAD
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">
<title>headrace demo</title>
<desc>A recording of a real run, {SPEED:g} times as fast as it was. Drawn by make demo-picture.</desc>
<style>
text{{font:{FONT}px {FONTS};white-space:pre}}
{styles}
.f{{visibility:hidden}}.f:last-of-type{{visibility:visible}}
@media (prefers-reduced-motion: no-preference){{.f{{animation:{total:.2f}s step-end infinite}}}}
{"".join(rules)}
</style>
<defs>{"".join(used)}</defs>
<rect width="{width:g}" height="{height:g}" rx="10" fill="#0d1117"/>
<circle cx="22" cy="20" r="6" fill="#ff5f57"/><circle cx="42" cy="20" r="6" fill="#febc2e"/>
<circle cx="62" cy="20" r="6" fill="#28c840"/>
<g transform="translate({PAD} {BAR + FONT})">
{"".join(groups)}
</g>
</svg>
"""


def main() -> None:
    """Run the demo and write the picture. A demo that does not add up leaves the old one."""
    film = Film()
    code = show(EVENTS, None, hold=False, screen=film)
    if code:
        sys.exit(code)
    place = Path(__file__).parent / "images" / "demo.svg"
    place.parent.mkdir(exist_ok=True)
    place.write_text(picture(film), encoding="utf-8")
    sys.stdout.write(f"{place}: {place.stat().st_size / 1024:.0f} KiB\n")


if __name__ == "__main__":
    main()
