"""What all commands have in common: the tables they work on, `--yes`, `--dry-run`, `--json`, exit codes, reports.

A command is a function with a docstring, in the table of `headrace.writer.cli.commands`. Its decorator says its exit
codes, and reads the rest off its signature:

- a parameter of `Depends(choose)` becomes the options of `choose`, and takes what `choose` returns;
- `write` gives it `--yes` and `--dry-run`: without them it is called with False and shows what it would change;
  a parameter `dry_run` beside it takes what that option says, and `preview` the report to which a person agreed;
- `screen` takes the `Screen`, of a command that shows more than the report that it returns;
- one that returns a report, or shows lines, has `--json`; one that returns an exit code, or nothing, has not.

A report with a `failure` is shown, and ends the command by it.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, isclass, signature
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from headrace.writer.output.report import Report, Screen
from headrace.writer.output.tables import sentence

_Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without, it is only shown; on a terminal you are asked.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show it, also beside --yes, and do not ask.")]
# What the decorator gives to the function, and is no option.
_OF_FUNCTION = ("write", "screen", "preview")
# What a command returns: a report, an exit code, or nothing to say.
Outcome = Report | int | None


@dataclass(frozen=True)
class Depends:
    """Marks a parameter that is chosen by options of its own: those of the function."""

    choose: Callable[..., Any]


def command(
    *, exits: Mapping[int, str], json_form: str | None = "one document", has_lines: bool = False
) -> Callable[[Callable[..., Outcome]], Callable[..., None]]:
    """Make a function a command.

    `exits`: each exit code, and when the command ends with it; that of a signal goes without saying. `json_form`: what
    `--json` prints, in the words of help; None: there is no `--json`. `has_lines`: a document a line.
    """

    def decorate(function: Callable[..., Outcome]) -> Callable[..., None]:
        parameters = signature(function).parameters
        has_json = has_lines or any(issubclass(kind, Report) for kind in outcome_kinds(function) if isclass(kind))

        @wraps(function)
        def run(**options: Any) -> None:
            screen = Screen(as_json=options.get("as_json", False), has_lines=has_lines)
            arguments = _choose_arguments(parameters, options)
            if "screen" in parameters:
                arguments["screen"] = screen
            if "preview" in parameters:
                arguments["preview"] = None
            call = partial(function, **arguments)
            if "write" in parameters:
                outcome = _confirm(call, screen, yes=options["yes"], dry_run=options["dry_run"])
            else:
                outcome = _show(call(), screen)
            if isinstance(outcome, Report) and outcome.failure is not None:
                raise outcome.failure
            code = outcome.exit_code if isinstance(outcome, Report) else outcome or 0
            if code:
                raise typer.Exit(code)

        # Tests hold the codes that the command ends with against them.
        run.exits = exits  # type: ignore[attr-defined]
        run.__doc__ = f"{function.__doc__}\n\n{_exit_codes(exits)}"
        # typer reads the signature.
        run.__signature__ = Signature(  # type: ignore[attr-defined]
            _command_parameters(parameters, json_form if has_json else None)
        )
        return run

    return decorate


def outcome_kinds(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the types that a command returns: those of a union, each."""
    annotation = signature(function).return_annotation
    is_union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _choose_arguments(parameters: Mapping[str, Parameter], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the function takes, of the options of the command."""
    arguments: dict[str, Any] = {}
    for name, parameter in parameters.items():
        choose = _choice_of(parameter)
        if choose is not None:
            arguments[name] = choose(**{option: options[option] for option in signature(choose).parameters})
        elif name not in _OF_FUNCTION:
            arguments[name] = options[name]
    return arguments


def _command_parameters(parameters: Mapping[str, Parameter], json_form: str | None) -> list[Parameter]:
    """Return the parameters of the command; two choices may share an option. `json_form`: None: no JSON."""
    by_name: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        choose = _choice_of(parameter)
        if choose is not None:
            by_name = {**by_name, **signature(choose).parameters}
        elif name not in _OF_FUNCTION:
            by_name[name] = parameter
    shared: list[tuple[str, Any]] = []
    if "write" in parameters:
        shared += [("yes", _Yes), ("dry_run", _DryRun)]
    if json_form is not None:
        # docs/json_keys.yaml has its keys.
        as_json = Annotated[bool, typer.Option("--json", help=f"Print JSON: {json_form}.")]
        shared.append(("as_json", as_json))
    for name, annotation in shared:
        by_name[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
    return [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in by_name.values()]


def _choice_of(parameter: Parameter) -> Callable[..., Any] | None:
    """Return the function whose options choose a parameter; None: it is an option itself."""
    if get_origin(parameter.annotation) is not Annotated:
        return None
    marks = [mark for mark in get_args(parameter.annotation)[1:] if isinstance(mark, Depends)]
    return marks[0].choose if marks else None


def _confirm(call: "partial[Outcome]", screen: Screen, *, yes: bool, dry_run: bool) -> Outcome:
    """Do it with `--yes`, or where a person at a terminal agrees to what was shown; else only show it."""
    if yes and not dry_run:
        return _show(call(write=True), screen)
    preview = _show(call(write=False), screen)
    if not isinstance(preview, Report) or screen.as_json or not preview.has_changes:
        return preview
    if dry_run or not (sys.stdin.isatty() and sys.stdout.isatty()):
        sentence(screen.out, "Nothing was changed. The same with --yes does it.")
        return preview
    if not typer.confirm("Do it?"):
        sentence(screen.out, "Nothing was changed.")
        return preview
    if "preview" in call.keywords:
        call = partial(call, preview=preview)
    return _show(call(write=True), screen)


def _show(outcome: Outcome, screen: Screen) -> Outcome:
    if isinstance(outcome, Report):
        screen.show(outcome)
    return outcome


def _exit_codes(exits: Mapping[int, str]) -> str:
    """Write the paragraph of help about exit codes."""
    gap = "; " if any("," in meaning for meaning in exits.values()) else ", "
    return f"Exit codes: {gap.join(f'{code} {meaning}' for code, meaning in exits.items())}."
