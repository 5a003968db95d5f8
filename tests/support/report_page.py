"""The page of a report as text."""

import io

from rich.console import Console

from headrace.writer.output.report import Report


def render_page(report: Report, width: int = 160) -> str:
    """Return what a command prints of a report for a pipe. `width`: columns."""
    text = io.StringIO()
    report.render(Console(file=text, highlight=False, width=width))
    return text.getvalue()
