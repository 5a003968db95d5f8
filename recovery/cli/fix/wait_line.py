"""The line of a command that waits for the live writer."""

from dataclasses import dataclass, field

from rich.console import Console

from headrace.writer.output.report import Report


@dataclass(frozen=True)
class WaitLine(Report):
    """Why a command waits."""

    event: str = field(default="waits", init=False)
    pipeline: str
    reason: str

    def render(self, out: Console) -> None:
        """Draw it with the time."""
        out.log(f"waits: {self.reason}")
