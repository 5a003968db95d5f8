"""What many verbs take, in the same words: the file, one pipeline or several, JSON."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(help="Configuration file (YAML).")]
Pipelines = Annotated[list[str] | None, typer.Option("--pipeline", help="Only this pipeline; may be repeated.")]
OnePipeline = Annotated[
    str | None, typer.Option("--pipeline", help="Which pipeline; may be left out when there is one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
