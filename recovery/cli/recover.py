"""The verbs `headrace recover run` and `headrace recover explain`."""

from typing import Annotated

import typer

from writer.options import AsJson, ConfigFile, Pipelines

recover = typer.Typer(no_args_is_help=True, help="Keep the writer going: supervise it, and say what recovery would do.")


def join(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.add_typer(recover, name="recover")


@recover.command()
def run(
    config: ConfigFile,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: the command of the driver, if it is not `headrace run CONFIG`."),
    ] = None,
    pipeline: Pipelines = None,
) -> None:
    """Start the writer, watch it, and start it again as the ladder of recovery says. Can be process 1 of a container.

    Takes the lease of each pipeline first; while another supervisor has it, waits. SIGTERM and SIGINT drain the driver.
    Without a command runs `headrace run CONFIG`. Answers at 127.0.0.1:9644 (`supervisor` in the configuration).

    Exit codes: 0 done or drained, 2 configuration, 4 another supervisor or writer has taken over, 5 a limit, 1 or 3
    nothing is left to be tried; else that of the driver.
    """
    from recovery.run import supervise
    from writer import log
    from writer.file import load

    log.set_up()
    settings = load(config)
    raise typer.Exit(supervise(settings, config, settings.chosen(pipeline), command or []))


@recover.command()
def explain(
    config: ConfigFile,
    pipeline: Pipelines = None,
    as_json: AsJson = False,
) -> None:
    """Show what the supervisor knows of a pipeline's failures, the budgets that are used, and what it would do now.

    Changes nothing; needs no supervisor that runs.

    Exit codes: 0 shown, 1 a pipeline is given up, or what is kept of it cannot be read, 2 configuration.
    """
    from rich.console import Console

    from recovery import explain as verb
    from writer.file import load

    settings = load(config)
    console = Console(highlight=False)
    raise typer.Exit(verb.explain(settings, settings.chosen(pipeline), as_json=as_json, console=console))
