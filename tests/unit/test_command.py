"""The mechanism of commands: options of a signature, --yes, reports as a page and as JSON, exit codes."""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from headrace.writer.cli.commands import COMMANDS, Command
from headrace.writer.cli.main import app as headrace
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.signals import SignalCode
from headrace.writer.output.command import Depends, command
from headrace.writer.output.command_inputs import ChosenPipelines
from headrace.writer.output.report import RECORD_VALUES, SCREEN_ONLY, Report, Screen, json_value


@dataclass(frozen=True)
class Removal(Report):
    """Files that go, or went."""

    files: int
    removed: bool
    code: int = field(default=0, metadata=SCREEN_ONLY)
    failure: HeadraceError | None = field(default=None, metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> int:
        return self.code

    @property
    def has_changes(self) -> bool:
        return self.files > 0

    def render(self, out: Console) -> None:
        out.print(f"{self.files} files {'went' if self.removed else 'would go'}")


def run(function: Callable[..., None], *words: str) -> tuple[int, str]:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    result = CliRunner().invoke(app, list(words))
    if isinstance(result.exception, AssertionError):
        raise result.exception
    return result.exit_code, result.output


def choose_files(config: Annotated[Path, typer.Argument()], only: str = "all") -> list[str]:
    return [str(config), only]


def choose_owner(config: Annotated[Path, typer.Argument()], owner: str = "nobody") -> str:
    return f"{owner} of {config}"


Files = Annotated[list[str], Depends(choose_files)]
Owner = Annotated[str, Depends(choose_owner)]


def removal(count: int) -> Callable[..., None]:
    @command(exits={0: "done or shown", 2: "configuration"})
    def remove(files: Files, *, write: bool) -> Removal:
        """Remove files."""
        assert files == ["here", "all"]
        return Removal(count, write)

    return remove


@pytest.mark.parametrize(
    ("flags", "output"),
    [
        ([], "3 files would go\nNothing was changed. The same with --yes does it.\n"),
        (["--dry-run"], "3 files would go\nNothing was changed. The same with --yes does it.\n"),
        (["--dry-run", "--yes"], "3 files would go\nNothing was changed. The same with --yes does it.\n"),
        (["--yes"], "3 files went\n"),
    ],
)
def test_what_removes_shows_first_and_does_it_with_yes(flags: list[str], output: str) -> None:
    assert run(removal(3), "here", *flags) == (0, output)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_person_agrees_to_is_what_was_chosen_for_the_preview(monkeypatch: pytest.MonkeyPatch) -> None:
    choices: list[int] = []
    calls: list[tuple[int, bool]] = []

    def choose() -> int:
        choices.append(len(choices))
        return choices[-1]

    @command(exits={0: "done or shown"})
    def remove(number: Annotated[int, Depends(choose)], *, write: bool) -> Removal:
        """Remove files."""
        calls.append((number, write))
        return Removal(3, write)

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.setattr("sys.stdout", Terminal())
    remove(yes=False, dry_run=False)
    assert calls == [(0, False), (0, True)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("retention", {"now"}),
        ("vacuum", {"now"}),
        ("seal", {"now"}),
        ("delete-rows", {"row_keys"}),
        ("promote", {"other_config"}),
    ],
)
def test_a_command_that_asks_reads_its_files_and_the_time_that_decides_once(words: str, names: set[str]) -> None:
    built = get_command(headrace).commands[words]  # type: ignore[attr-defined]
    parameters = inspect.signature(inspect.unwrap(built.callback)).parameters
    assert names <= parameters.keys()
    assert names.isdisjoint(parameter.name for parameter in built.params)


def test_nothing_is_asked_where_there_is_nothing_to_do() -> None:
    assert run(removal(0), "here") == (0, "0 files would go\n")


@pytest.mark.parametrize(("flags", "removed"), [([], False), (["--yes"], True), (["--yes", "--dry-run"], False)])
def test_json_is_the_fields_of_one_report_and_asks_nothing(flags: list[str], removed: bool) -> None:
    code, output = run(removal(3), "here", "--json", *flags)
    assert (code, json.loads(output)) == (0, {"files": 3, "removed": removed})


def test_two_choices_share_the_option_that_both_read() -> None:
    @command(exits={0: "shown"})
    def show(files: Files, owner: Owner, *, screen: Screen) -> None:
        """Show files."""
        screen.out.print(f"{files} {owner}", markup=False)

    assert run(show, "here", "--only", "a", "--owner", "me") == (0, "['here', 'a'] me of here\n")


def test_a_command_shows_lines_as_they_come() -> None:
    @command(exits={0: "shown"}, json_form="a line for each", has_lines=True)
    def show(files: Files, *, screen: Screen) -> Removal:
        """Show files."""
        for count, _ in enumerate(files):
            screen.show(Removal(count, removed=False))
        return Removal(len(files), removed=True)

    _, output = run(show, "here", "--json")
    assert [json.loads(line)["files"] for line in output.splitlines()] == [0, 1, 2]


def test_the_exit_code_is_that_of_the_report() -> None:
    @command(exits={0: "shown", 1: "some are missing"})
    def show(files: Files, code: int = 0) -> Removal:
        """Show files."""
        return Removal(len(files), removed=False, code=code)

    assert run(show, "here", "--code", "1")[0] == 1
    assert "Exit codes: 0 shown, 1 some are missing." in " ".join(run(show, "--help")[1].split())


@pytest.mark.parametrize(
    ("flags", "calls"),
    [
        ([], [(False, False)]),
        (["--dry-run"], [(True, False)]),
        (["--dry-run", "--yes"], [(True, False)]),
        (["--yes"], [(False, True)]),
    ],
)
def test_a_command_knows_whether_it_is_to_show_only(flags: list[str], calls: list[tuple[bool, bool]]) -> None:
    flags_of_calls: list[tuple[bool, bool]] = []

    @command(exits={0: "done"})
    def remove(files: Files, dry_run: bool = False, *, write: bool) -> int:
        """Remove files."""
        assert files
        flags_of_calls.append((dry_run, write))
        return 0

    assert (run(remove, "here", *flags), flags_of_calls) == ((0, ""), calls)


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--yes"]])
def test_nobody_agreed_to_a_preview_without_a_terminal(flags: list[str]) -> None:
    @command(exits={0: "done"})
    def remove(files: Files, *, write: bool, preview: Removal | None) -> Removal:
        """Remove files."""
        assert preview is None
        return Removal(len(files), write)

    assert run(remove, "here", *flags)[0] == 0


def test_an_exit_code_that_help_does_not_list_is_passed_on() -> None:
    @command(exits={0: "shown"})
    def show(files: Files, code: int = 0) -> Removal:
        """Show files."""
        return Removal(len(files), removed=False, code=code)

    assert run(show, "here", "--code", "7") == (7, "2 files would go\n")


@pytest.mark.parametrize("code", [0, 1, 7, 143])
def test_a_command_without_a_report_returns_its_exit_code_and_has_no_json(code: int) -> None:
    @command(exits={0: "done", 1: "not"})
    def work(files: Files, code: int = 0) -> int:
        """Work on files."""
        assert files
        return code

    assert run(work, "here", "--code", str(code)) == (code, "")
    assert run(work, "here", "--code", str(code), "--json")[0] == 2


def test_a_command_that_returns_one_of_several_codes_has_no_json() -> None:
    @command(exits={0: "done", 1: "not"})
    def work(files: Files) -> Literal[0, 1] | SignalCode:
        """Work on files."""
        return 1 if files else 0

    assert run(work, "here") == (1, "")
    assert run(work, "here", "--json")[0] == 2


def test_a_command_that_returns_a_report_or_a_code_has_json() -> None:
    @command(exits={0: "done", 1: "not"})
    def work(files: Files) -> Removal | Literal[0, 1]:
        """Work on files."""
        return Removal(len(files), removed=False)

    assert json.loads(run(work, "here", "--json")[1]) == {"files": 2, "removed": False}


def test_a_command_that_shows_lines_alone_has_json() -> None:
    @command(exits={0: "shown"}, json_form="a line for each", has_lines=True)
    def show(files: Files, *, screen: Screen) -> None:
        """Show files."""
        screen.show(Removal(len(files), removed=False))

    assert run(show, "here", "--json") == (0, '{"files": 2, "removed": false}\n')


@pytest.mark.parametrize(
    ("flags", "output"),
    [([], "looking\n2 files would go\n"), (["--json"], '{\n  "files": 2,\n  "removed": false\n}\n')],
)
def test_what_comes_before_a_report_is_no_part_of_json(flags: list[str], output: str) -> None:
    @command(exits={0: "shown"})
    def show(files: Files, *, screen: Screen) -> Removal:
        """Show files."""
        screen.out.print("looking")
        return Removal(len(files), removed=False)

    assert run(show, "here", *flags) == (0, output)


@pytest.mark.parametrize(("flags", "output"), [([], "2 files went\n"), (["--json"], '{\n  "files": 2')])
def test_a_command_ends_by_its_failure_after_what_it_shows(flags: list[str], output: str) -> None:
    @command(exits={0: "shown", 1: "one cannot be read"})
    def show(files: Files) -> Removal:
        """Show files."""
        return Removal(len(files), removed=True, failure=HeadraceError("clicks cannot be read"))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(show)
    result = CliRunner().invoke(app, ["here", *flags])
    assert result.output.startswith(output)
    assert str(result.exception) == "clicks cannot be read"


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["bad", "a"], ["a", "bad", "worse"]])
def test_a_pipeline_that_fails_does_not_hide_the_others(names: list[str]) -> None:
    def look(name: str) -> str:
        if name in ("bad", "worse"):
            raise HeadraceError(f"{name} fails")
        return name.upper()

    pipelines = ChosenPipelines(names, Config.model_construct())
    results, failure = pipelines.look_at_each(look)
    assert results == {name: name.upper() for name in names if name in ("a", "b")}
    errors = [f"{name} fails" for name in names if name in ("bad", "worse")]
    assert ([] if failure is None else str(failure).split("\nheadrace: ")) == errors


def test_where_all_pipelines_fail_nothing_is_shown() -> None:
    def look(name: str) -> str:
        raise HeadraceError(f"{name} fails")

    with pytest.raises(HeadraceError, match="a fails\nheadrace: b fails"):
        ChosenPipelines(["a", "b"], Config.model_construct()).look_at_each(look)


@dataclass(frozen=True)
class Listing(Report):
    """Files by name."""

    names: Sequence[str]

    def render(self, out: Console) -> None:
        out.print(" ".join(self.names))

    def lines(self) -> list[str]:
        return list(self.names)


@pytest.mark.parametrize(("flags", "output"), [([], "here all\n"), (["--json"], '"here"\n"all"\n')])
def test_a_report_of_several_lines_is_one_page(flags: list[str], output: str) -> None:
    @command(exits={0: "shown"}, json_form="a line for each", has_lines=True)
    def show(files: Files) -> Listing:
        """Show files."""
        return Listing(files)

    assert run(show, "here", *flags) == (0, output)


class Color(Enum):
    RED = "red"


class Value:
    def to_json(self) -> dict[str, int]:
        return {"format": 1}


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (datetime(2026, 11, 20, 5, tzinfo=UTC), "2026-11-20T05:00:00.000Z"),
        (date(2026, 11, 20), "2026-11-20"),
        (timedelta(minutes=2), 120.0),
        (Color.RED, "red"),
        (Path("a/b"), "a/b"),
        ({"a": (1, None)}, {"a": [1, None]}),
        (frozenset({"b", "a"}), ["a", "b"]),
        ([Removal(1, removed=True)], [{"files": 1, "removed": True}]),
        (Value(), {"format": 1}),
        (True, True),
    ],
)
def test_a_value_has_one_form_in_json(value: Any, form: Any) -> None:
    assert json_value(value) == form


@dataclass(frozen=True)
class Sample:
    values: Any = field(metadata=RECORD_VALUES)


def test_values_of_records_have_the_form_of_decoded_values() -> None:
    values = {"key": b"\x01", "ratio": float("nan"), "at": datetime(2026, 11, 20, 5, 0, 0, 1, UTC)}
    assert json_value(Sample(values)) == {"values": {"key": "01", "ratio": "nan", "at": "2026-11-20T05:00:00.000001Z"}}


def test_a_value_without_a_form_in_json_is_an_error() -> None:
    with pytest.raises(TypeError, match="a report has a bytes"):
        json_value(b"")


def commands(group: str) -> Sequence[tuple[str, Any]]:
    built = get_command(headrace).commands  # type: ignore[attr-defined]
    found: list[tuple[str, Any]] = []
    for entry in COMMANDS[group]:
        if isinstance(entry, Command):
            found.append((entry.name, built[entry.name]))
        else:
            found += [(f"{entry.name} {part.name}", built[entry.name].commands[part.name]) for part in entry.commands]
    return found


def test_no_command_that_looks_writes() -> None:
    asks = [name for name, built in commands("Look") if "--yes" in {flag for p in built.params for flag in p.opts}]
    assert asks == []


def test_a_module_lies_in_the_folder_of_its_group() -> None:
    for group, entries in COMMANDS.items():
        for entry in entries:
            rows = [entry] if isinstance(entry, Command) else entry.commands
            for row in rows:
                package = row.function.partition(":")[0].rpartition(".")[0]
                if package.startswith(("headrace.writer.cli.", "headrace.recovery.cli.")):
                    assert package.rpartition(".")[2] == group.lower(), row.name
