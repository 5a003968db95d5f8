"""What a chaos run found, as a page and as JSON."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from headrace.bench.chaos.verification import Verdict
from headrace.writer.config.sections.table import TableFormat
from headrace.writer.demo.terminal import Screen as Terminal
from headrace.writer.output.report import Report, json_value


@dataclass(frozen=True)
class ChaosReport(Report):
    """The verdict of a run; `clean`: nothing is wrong."""

    seed: int
    minutes: float
    clean: bool
    verdict: Verdict
    table_format: TableFormat
    directory: Path

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where something is wrong."""
        return 0 if self.clean else 1

    def document(self) -> dict[str, Any]:
        """Return the verdict, with what repeats the run."""
        return {"seed": self.seed, "minutes": self.minutes, "clean": self.clean, **json_value(self.verdict)}

    def render(self, out: Console) -> None:
        """Say what became of the records, what is wrong, and how to play it again."""
        terminal = Terminal(out)
        verdict = self.verdict
        totals = (
            f"{verdict.produced:,} produced = {verdict.held:,} held + {verdict.taken:,} taken by retention + "
            f"{verdict.died:,} deleted with their topic + {verdict.lost:,} lost, {verdict.twice:,} twice"
        )
        terminal.write()
        terminal.write(
            Text.assemble(terminal.mark(good=self.clean), (f" {totals}", "bold green" if self.clean else "bold"))
        )
        for problem in verdict.said:
            terminal.write(f"  {problem}", style="red")
        terminal.write(
            f"  again: headrace chaos --seed {self.seed} --minutes {self.minutes:g} --format {self.table_format}"
        )
        if not self.clean:
            with suppress(OSError):
                terminal.write(f"  the lake, the checkpoints and the writer's log: {self.directory}")
