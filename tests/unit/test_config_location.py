"""Which configuration a command reads that names none."""

import pytest
from typer.main import get_command

from headrace.writer.cli.main import app, main

GROUP = get_command(app)


def parsed(*words):
    """What a command makes of its arguments."""
    command = GROUP
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    return {name: str(value) for name, value in command.make_context("x", list(words)).params.items() if value}


@pytest.mark.parametrize("words", [("status",), ("pause",), ("dlq", "list"), ("topic", "adopt"), ("autoscaler", "run")])
def test_a_command_without_a_file_reads_the_named_one_else_that_of_the_directory(words, monkeypatch):
    assert parsed(*words)["config"] == "pipelines.yaml"
    monkeypatch.setenv("HEADRACE_CONFIG", "/etc/headrace/clicks.yaml")
    assert parsed(*words)["config"] == "/etc/headrace/clicks.yaml"
    assert parsed(*words, "other.yaml")["config"] == "other.yaml"


@pytest.mark.parametrize(
    ("words", "config", "name", "other"),
    [
        (("gaps", "show", "3f2a"), "pipelines.yaml", "gap", "3f2a"),
        (("gaps", "show", "c.yaml", "3f2a"), "c.yaml", "gap", "3f2a"),
        (("gaps", "close", "--reason", "x", "3f2a"), "pipelines.yaml", "gap", "3f2a"),
        (("seal", "2026-11-20T05"), "pipelines.yaml", "bucket", "2026-11-20T05"),
        (("seal", "c.yml"), "c.yml", "bucket", None),
        (("seal",), "pipelines.yaml", "bucket", None),
        (("supervisor", "run", "--", "python", "-m", "x"), "pipelines.yaml", "command", "['python', '-m', 'x']"),
        (("supervisor", "run", "c", "--", "true"), "c", "command", "['true']"),
        (("supervisor", "run", "c.yaml"), "c.yaml", "command", None),
    ],
)
def test_an_argument_that_is_no_file_is_the_next_one(words, config, name, other, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c").touch()
    found = parsed(*words)
    assert (found["config"], found.get(name)) == (config, other)


@pytest.mark.parametrize("words", [["status"], ["doctor"], ["autoscaler", "explain"]])
def test_where_there_is_neither_one_sentence_names_both(words, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    monkeypatch.setattr("sys.argv", ["headrace", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "headrace: cannot read pipelines.yaml: No such file or directory. Give the path of a configuration file, set "
        "HEADRACE_CONFIG to it, or write ./pipelines.yaml with `headrace init`.\n"
    )
