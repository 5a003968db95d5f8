"""The examples of the documentation: blocks of its pages, files of docs/examples, their commands, and those of help."""

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml

from headrace.writer.cli.commands import examples
from headrace.writer.cli.main import app

ROOT = Path(__file__).parents[2]
# A script: each line is a command.
SHELL = "sh"
# A session: commands behind "$ ", and what they print.
SESSION = "console"
EXAMPLES = ROOT / "docs" / "examples"
# What a file of docs/examples is, by a part of its text; else its language is its suffix.
COMPOSE = "compose"
MANIFEST = "manifest"
CHART_VALUES = "values"
_SIGNS = {"\nservices:\n": COMPOSE, "\nkind: ": MANIFEST, "pipelines:\n": "yaml"}
_SUFFIXES = {".json": "json", ".properties": "properties", ".tf": "terraform", ".yaml": CHART_VALUES}
_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)    \S.*\n(?: {4}.*\n)*")
_INLINE = re.compile(r"(?<!`)`(headrace [^`]+)`(?!`)")
_OPERATORS = ("&&", "||", "|", ";")


@dataclass(frozen=True)
class Block:
    """A block of a page, with the number of its first line. `language`: the word behind its fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def position(self) -> str:
        return f"{self.page}:{self.line}"


# What a configuration needs, where a block shows a part of one.
_SECTIONS: Mapping[str, Any] = {
    "kafka": {"bootstrap_servers": "broker:9092"},
    "registry": {"url": "http://registry:8081"},
    "checkpoints": "/checkpoints",
    "keys": {"file": "/keys.json"},
}


@dataclass(frozen=True)
class Command:
    """A command that a page or a help shows. `arguments`: as a shell splits them, the program first."""

    position: str
    arguments: tuple[str, ...]

    @property
    def line(self) -> str:
        return shlex.join(self.arguments)

    @property
    def program(self) -> str:
        return Path(self.arguments[0]).name


def list_pages() -> list[Path]:
    """Return the pages for people who use or change headrace; reports of tests are none."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("helm/*/*.md"), ROOT / "bench" / "README.md"]
    return sorted(pages)


@cache
def list_blocks() -> tuple[Block, ...]:
    """Return each fenced block of each page, each indented one outside lists, and each file of docs/examples."""
    blocks: list[Block] = []
    for path in list_pages():
        blocks += page_blocks(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    return (*blocks, *example_files())


def example_files() -> Iterator[Block]:
    """Yield each file of docs/examples as a block; `headrace test` runs those of a folder `specs`."""
    for path in sorted(EXAMPLES.rglob("*")):
        if path.suffix in _SUFFIXES and path.parent.name != "specs":
            text = path.read_text(encoding="utf-8")
            languages = [language for sign, language in _SIGNS.items() if sign in text and path.suffix == ".yaml"]
            yield Block(str(path.relative_to(ROOT)), 1, [*languages, _SUFFIXES[path.suffix]][0], text)


def page_blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a page."""
    for match in _FENCE.finditer(text):
        yield Block(page, _line_of(text, match.start(3)), match[2], textwrap.dedent(match[3]))
    outside_fences = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in _INDENTED.finditer(outside_fences):
        yield Block(page, _line_of(outside_fences, match.start()), "indented", textwrap.dedent(match[0]))


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def help_examples() -> Mapping[str, str]:
    """Return the example of each command's help, by the words of the command."""
    return dict(examples())


def whole_config(block: Block) -> dict[str, Any]:
    """Return the configuration that a block shows; a part of one is laid over the least that it needs."""
    document: dict[str, Any] = yaml.safe_load(block.text)
    if "kafka" in document and "pipelines" in document:
        return document
    pipelines = {}
    for name, pipeline in document.get("pipelines", {"clicks": {}}).items():
        least = {"topics": [name], "table": {"location": f"/lake/{name}"}, "event_time": {"field": "event_time"}}
        pipelines[name] = {**least, **pipeline}
    return {**_SECTIONS, **document, "pipelines": pipelines}


def documented_configs() -> list[dict[str, Any]]:
    """Return each configuration of the pages."""
    blocks = [block for block in list_blocks() if block.language == "yaml" and "pipelines:\n" in block.text]
    return [whole_config(block) for block in blocks]


def block_commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block: of all lines of a shell's block, of those behind "$ " of a session."""
    if block.language == SHELL:
        yield from _shell_commands(block.position, block.text)
    elif block.language == SESSION:
        shown = "\n".join(line[2:] for line in block.text.splitlines() if line.startswith("$ "))
        yield from _shell_commands(block.position, shown)
    elif block.language == "yaml":
        # Steps of a workflow of GitHub.
        yield from _shell_commands(block.position, "\n".join(re.findall(r"^- run: (.+)$", block.text, re.MULTILINE)))
    elif block.language == COMPOSE:
        for service in yaml.safe_load(block.text)["services"].values():
            if "command" in service:
                yield Command(block.position, tuple(service["command"]))


def _shell_commands(position: str, text: str) -> Iterator[Command]:
    """Yield each command of a script, without its comment. Operators of the shell separate commands."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        arguments: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word not in _OPERATORS:
                arguments.append(word)
            elif arguments:
                yield Command(position, tuple(arguments))
                arguments = []


@cache
def headrace_commands() -> tuple[Command, ...]:
    """Return each headrace command of a block of a page and of help, also one that another program is given."""
    commands = [
        Command(f"headrace {name} --help", tuple(shlex.split(example))) for name, example in help_examples().items()
    ]
    for block in list_blocks():
        commands += filter(None, map(headrace_part, block_commands(block)))
    return tuple(commands)


def headrace_part(command: Command) -> Command | None:
    """Return the headrace command that a command is, or gives another program; None where it has none.

    Programs are given one behind "--", and `docker compose exec` behind the name of a service.
    """
    arguments = command.arguments
    given = 0
    if arguments[:3] == ("docker", "compose", "exec"):
        services = [index for index, word in enumerate(arguments) if index > 2 and not word.startswith("-")]
        given = services[0] + 1
    for index, word in enumerate(arguments):
        if Path(word).name == "headrace" and (index == given or arguments[index - 1] == "--"):
            return Command(command.position, ("headrace", *arguments[index + 1 :]))
    return None


def inline_commands() -> Iterator[Command]:
    """Yield the commands that sentences name: `headrace seal --with-gap`."""
    for path in list_pages():
        text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"))
        for match in _INLINE.finditer(text):
            position = f"{path.relative_to(ROOT)}:{_line_of(text, match.start())}"
            yield Command(position, tuple(shlex.split(" ".join(match[1].split()))))


def find_command(arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the command that arguments of headrace begin with, and the remaining ones. Raises LookupError."""
    command: Any = typer.main.get_command(app)
    remaining = list(arguments)
    while hasattr(command, "commands") and remaining and not remaining[0].startswith("-"):
        if remaining[0] not in command.commands:
            raise LookupError(f"there is no {remaining[0]}")
        command = command.commands[remaining.pop(0)]
    return command, remaining


def parse_command(command: Command) -> None:
    """Let the real command line parse a command. Raises for an option or a value that it does not take."""
    parser, arguments = find_command(command.arguments[1:])
    parser.make_context(command.line, arguments)
