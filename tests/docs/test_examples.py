"""The examples of the documentation are true: each block is judged by its language, or says why no test can here.

tests/spark/test_examples_run.py runs the commands.
"""

import ast
import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from headrace.writer.avro.schema_text import parse_schema
from headrace.writer.config.loader import checked
from headrace.writer.config.references import References
from headrace.writer.privacy.encryption import encrypt_values
from tests.support.deploy_examples import list_values
from tests.support.doc_examples import (
    CHART_VALUES,
    COMPOSE,
    MANIFEST,
    ROOT,
    SESSION,
    SHELL,
    Block,
    block_commands,
    find_command,
    headrace_part,
    help_examples,
    inline_commands,
    list_blocks,
    page_blocks,
    parse_command,
    whole_config,
)
from tests.support.sealed_lake import SealedLake

# Why no test runs a command of another program, by the program.
OTHER_PROGRAMS = {
    "bash": "docker/build.sh builds images: make images",
    "cp": "copies a table's folder; tests/contract/test_nested_tables.py does so",
    "docker": "needs a daemon and a registry of images; tests/spark/test_compose_example.py plays those of Compose",
    "helm": "needs a cluster: make test-chart and make test-rollout",
    "kubectl": "needs a cluster: make test-rollout walks docs/DEPLOY.md",
    "make": "is the build itself; tests/docs/test_docs.py looks up its targets",
    "printf": "writes a file; tests/spark/test_compose_example.py runs it",
    "pip": "installs from a package index; tests/contract/test_wheel.py installs the wheel",
    "pytest": "runs the tests",
    "python": "is a command of a container: tests/spark/test_compose_example.py runs it",
    "python3": "makes environments and wheels; tests/contract/test_wheel.py does both",
    "rm": "removes a table's folder; tests/contract/test_nested_tables.py does so",
    "trino": "needs Trino: make test-lake and make test-rollout",
}


@dataclass(frozen=True)
class NotRun:
    """A block that nothing runs here. `beginning`: of its text, as lines move."""

    page: str
    beginning: str
    reason: str

    def is_of(self, block: Block) -> bool:
        return block.page == self.page and block.text.lstrip().startswith(self.beginning)


NOT_RUN = (
    NotRun("README.md", "schema registry", "a picture"),
    NotRun("SECURITY.md", "producers ──► Kafka", "a picture"),
    NotRun("docs/ARCHITECTURE.md", "DRIVER", "a picture"),
    NotRun("docs/AUTOSCALING.md", "2026-01-05 07:00:45 UTC  up: 2 executors", "docs/autoscaling.py makes it"),
    NotRun("docs/AUTOSCALING_RESULTS.md", "0 s  stay", "docs/autoscaling.py makes it of a recorded run"),
    NotRun("docs/BUCKETS.md", "open ──► closed", "a picture"),
    NotRun("docs/BUCKETS.md", "<table>/_headrace/sealed/", "a path"),
    NotRun("docs/DEPLOY.md", "[Unit]", "tests/unit/test_systemd_unit.py and tests/spark/test_stopping.py play it"),
    NotRun("docs/ENGINES.md", "connector.name=delta_lake", "settings of Trino: make test-lake"),
    NotRun("docs/ENGINES.md", "CALL delta.system.register_table", "needs Trino: make test-lake"),
    NotRun("docs/ENGINES.md", "connector.name=hive", "settings of Trino: make test-lake"),
    NotRun("docs/ENGINES.md", "CREATE TABLE hive.lake.clicks", "needs Trino: make test-lake"),
    NotRun("docs/ENGINES.md", "CREATE TABLE delta.lake.clicks", "needs Presto: make test-lake"),
    NotRun("docs/ENGINES.md", "spark.table(", "needs a Spark session: make test-lake"),
    NotRun(
        "docs/examples/compose/trino/delta.properties", "#", "settings of Trino: tests/engines/test_compose_example.py"
    ),
    NotRun("docs/examples/kubernetes/terraform/main.tf", "#", "tests/engines/test_deploy_examples.py evaluates it"),
    NotRun("docs/RAW.md", "-- the record of a row", "needs a raw table; tests/spark/test_examples_run.py has one"),
    NotRun("docs/ROUTING.md", "! route ", "printed by `validate --sample`: tests/contract/test_route_preview.py"),
    NotRun("docs/ROUTING.md", "tables    2, 1 behind", "printed by `status`: tests/unit/test_screens.py"),
    NotRun("docs/SHADOW.md", "headrace: `headrace promote` put", "an error: tests/contract/test_promote.py"),
    NotRun("docs/SHADOW.md", "40 offsets that both", "printed by `diff`: tests/contract/test_diff.py"),
    NotRun("docs/SIZING.md", "# Invented round numbers", "a file of prices: tests/unit/test_prices.py reads it"),
    NotRun("docs/SPECS.md", "pipelines.app.specs", "an error: tests/unit/test_event_specs.py"),
    NotRun("docs/TABLES.md", "<table>/hour=", "paths"),
    NotRun("docs/TABLES.md", "spark.conf.set", "needs a Spark session: make test-lake"),
    NotRun("docs/TESTING.md", "--- specs/clicks", "printed by `test --update`: tests/contract/test_pipeline_tests.py"),
)
# Blocks that show a part of a file, by their beginning.
EXCERPTS = {"config: ../pipelines.yaml": "docs/examples/shop/specs/clicks.test.yaml"}
# Folders of the repository in which an example names a file.
FOLDERS = ("bench/", "docker/", "docs/", "helm/", "tests/")
# The name of a page behind which no address stands, as a message would print it.
BARE_PAGE = re.compile(r"(?<![\w/.-])(?:docs/)?[A-Z][A-Z_]{2,}\.md")
# A line of more parts than these, without figures, is the first line of a table.
MIN_COLUMNS = 2
BLOCKS = list_blocks()
CODE = [block for block in BLOCKS if block.language in {"python", "sql"}]


def reason_not_to_run(block: Block) -> str:
    """Return why nothing runs a block; empty: there is no reason."""
    return next((entry.reason for entry in NOT_RUN if entry.is_of(block)), "")


def judge_commands(block: Block) -> None:
    """Let headrace parse its commands. Those of other programs have a reason, and name files that there are."""
    for command in block_commands(block):
        if headrace_part(command):
            parse_command(headrace_part(command))
        if command.program != "headrace":
            assert command.program in OTHER_PROGRAMS, f"say in OTHER_PROGRAMS why no test runs {command.line}"
        for word in command.arguments:
            assert not word.startswith(FOLDERS) or (ROOT / word).exists(), f"there is no {word}"


def judge_session(block: Block) -> None:
    """Judge its commands, what they print, and the columns of tables that they print."""
    judge_commands(block)
    judge_output(block)
    for line in block.text.splitlines():
        columns = re.split(r" {2,}", line.strip())
        if len(columns) > MIN_COLUMNS and not re.search(r"[\d:$─…]", line):
            unknown = set(columns) - printed_texts()
            assert not unknown, f"no command prints a column {', '.join(sorted(unknown))}"


@cache
def printed_texts() -> set[str]:
    """Return the texts of the product's code, such as the titles of columns."""
    texts: set[str] = set()
    for package in ("autoscaler", "recovery", "writer"):
        for path in (ROOT / package).rglob("*.py"):
            texts |= {text.strip() for text in re.findall(r'"([^"\n]*)"', path.read_text(encoding="utf-8"))}
    return texts


def judge_output(block: Block) -> None:
    """Look for the name of a page without its address: messages give that."""
    for line in block.text.splitlines():
        assert not BARE_PAGE.search(line), f"messages give the address of a page: {line}"


def judge_yaml(block: Block) -> None:
    """Load a configuration, or a part of one with what it needs. Other documents are parts of files, or workflows."""
    excerpts = [path for beginning, path in EXCERPTS.items() if block.text.startswith(beginning)]
    if excerpts:
        judge_excerpt(block, (ROOT / excerpts[0]).read_text(encoding="utf-8"))
    elif list(block_commands(block)):
        judge_commands(block)
    else:
        checked(whole_config(block), block.position, References(lambda kind, name: f"the value of {kind} {name}"))


def judge_excerpt(block: Block, text: str) -> None:
    """Find the lines of a block, but for "…", in a text in their order."""
    lines = iter(text.splitlines())
    for line in block.text.splitlines():
        if line.strip() != "…":
            assert line in lines, f"the file has no such line here: {line}"


def judge_python(block: Block) -> None:
    """Compile it, and look up what it imports."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            assert names <= set(dir(import_module(str(node.module)))), ast.unparse(node)


def judge_json(block: Block) -> None:
    """Read one or more documents. A record is a schema of Avro that headrace reads."""
    decoder = json.JSONDecoder()
    text = block.text.strip()
    while text:
        document, length = decoder.raw_decode(text)
        text = text[length:].strip()
        if document.get("type") == "record":
            parse_schema(json.dumps(document))


def judge_help_example(block: Block) -> None:
    """Find it in the reference, which shows the examples of help so."""
    is_help = block.page == "docs/REFERENCE.md" and block.text.strip() in help_examples().values()
    assert is_help, "put it between fences, with its language"


def judge_by_reason(block: Block) -> None:
    assert reason_not_to_run(block), "let a test read this block, and name the test in NOT_RUN"
    judge_output(block)


def judge_when_run(_: Block) -> None:
    """Leave it to the test that runs it."""


def judge_manifest(block: Block) -> None:
    """Hold the values that a release of Argo CD or Flux gives the chart. KEDA's have a test of their own."""
    objects = list(yaml.safe_load_all(block.text))
    assert all({"apiVersion", "kind", "metadata", "spec"} <= manifest.keys() for manifest in objects)
    judge_values(block)


def judge_values(block: Block) -> None:
    """Hold values against the chart's schema, and the file of the pipelines in them as headrace does."""
    for values in list_values():
        if block.page.endswith(f"/{values.name}") or f"/{values.name}/" in block.page:
            assert values.faults() == []
            assert ("config" in values.values) == values.is_whole
            if values.is_whole:
                config = yaml.safe_load(values.values["config"])
                checked(config, block.position, References(lambda kind, name: f"the value of {kind} {name}"))


# What judges a block, by its language.
JUDGES: Mapping[str, Callable[[Block], None]] = {
    SHELL: judge_commands,
    SESSION: judge_session,
    "yaml": judge_yaml,
    "python": judge_python,
    "sql": judge_when_run,
    "json": judge_json,
    COMPOSE: judge_commands,
    MANIFEST: judge_manifest,
    CHART_VALUES: judge_values,
    "indented": judge_help_example,
    **dict.fromkeys(("diff", "ini", "properties", "terraform", "text"), judge_by_reason),
}


def judge(block: Block) -> None:
    """Judge a block by its language. Raises AssertionError, and what the judges raise, with the position."""
    assert block.language in JUDGES, f"{block.position}: name its language behind the fence, one of {', '.join(JUDGES)}"
    try:
        JUDGES[block.language](block)
    except BaseException as error:
        error.add_note(f"of the block at {block.position}")
        raise


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}))
def test_each_block_of_a_page_is_true_or_says_why_no_test_can_tell(page: str) -> None:
    for block in BLOCKS:
        if block.page == page:
            judge(block)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```\nheadrace status\n```\n", "name its language"),
        ("```sh\nheadrace rewind pipelines.yaml --to 1 --sure\n```\n", "No such option"),
        ("```sh\nheadrace rewind pipelines.yaml\n```\n", "Missing parameter: to"),
        ("```sh\nheadrace gaps mend\n```\n", "there is no mend"),
        ("```sh\nheadrace status && headrace statuses\n```\n", "there is no statuses"),
        ("```sh\nkubectl exec pod -- headrace gap\n```\n", "there is no gap"),
        ("```sh\npodman run headrace\n```\n", "OTHER_PROGRAMS"),
        ("```sh\nheadrace autoscaler explain --facts docs/none.json\n```\n", "there is no docs/none.json"),
        ("```console\n$ headrace promote --nothing\n```\n", "No such option"),
        ("```console\n$ headrace status\nsee docs/SHADOW.md\n```\n", "address of a page"),
        ("```console\n$ headrace dlq list\nrecords  kind of end  topic\n```\n", "a column kind of end"),
        ("```yaml\npipelines:\n  app: {spec: {}}\n```\n", "unknown key 'spec'"),
        ("```yaml\nkafka: {}\n```\n", "cannot be used"),
        ("```yaml\n- run: headrace test --junitxml tests.xml\n```\n", "No such option"),
        ("```yaml\nconfig: ../pipelines.yaml\nthen: never\n```\n", "no such line"),
        ("```python\nimport headrace.none\n```\n", "No module"),
        ("```python\nfrom headrace.writer.core.pages import none\n```\n", "import none"),
        ("```python\nx =\n```\n", "invalid syntax"),
        ('```json\n{"a": 1,}\n```\n', "Expecting property name"),
        ("text\n\n    headrace status\n", "between fences"),
        ("```text\na picture\n```\n", "NOT_RUN"),
        ("```sh\ndocker compose exec -T headrace headrace statuses\n```\n", "there is no statuses"),
        ("```compose\nservices: {a: {command: [headrace, gap]}}\n```\n", "there is no gap"),
    ],
)
def test_a_block_that_is_wrong_fails(text: str, problem: str) -> None:
    (block,) = page_blocks("docs/NEW.md", text)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of the parsers
        judge(block)
    error = caught.value
    assert problem in f"{error} {getattr(error, 'message', '')}"


def test_each_reason_is_of_a_block_and_of_a_program_that_there_is() -> None:
    for entry in NOT_RUN:
        assert any(entry.is_of(block) for block in BLOCKS), f"nothing is left of {entry}"
    programs = {command.program for block in BLOCKS for command in block_commands(block)}
    assert programs - {"headrace"} == OTHER_PROGRAMS.keys()


def test_each_command_that_a_sentence_names_exists_with_its_options() -> None:
    commands = [command for command in inline_commands() if "<" not in command.line]
    assert len(commands) > 100
    for command in commands:
        parser, arguments = find_command(command.arguments[1:])
        options = {"--help"}
        for parameter in parser.params:
            options |= {*parameter.opts, *parameter.secondary_opts}
        unknown = {word for word in arguments if word.startswith("-")} - options
        assert not unknown, f"{command.position}: {command.line} has no {unknown}"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """A table and a keyring, where blocks of code name theirs: what stands on a page, and what stands here."""
    root = tmp_path_factory.mktemp("examples")
    SealedLake(root).add(5, 30)
    keyring = root / "keys.json"
    keyring.write_text(json.dumps({"encrypt": {"primary": "k1", "keys": {"k1": base64.b64encode(KEY).decode()}}}))
    keyring.chmod(0o600)
    return {"/lake/": f"{root}/lake/", "/etc/headrace/": f"{root}/"}


KEY = os.urandom(32)


def adapt(block: Block, places: Mapping[str, str]) -> str:
    text = block.text
    for documented, actual in places.items():
        text = text.replace(documented, actual)
    return text


@pytest.fixture
def clicks(places: Mapping[str, str]) -> Iterator[None]:
    """The view that the page of engines makes."""
    (block,) = [block for block in CODE if "CREATE VIEW clicks" in block.text]
    exec(adapt(block, places), {})
    yield
    duckdb.sql("DROP VIEW clicks")
    duckdb.unregister("files")


@pytest.mark.parametrize("block", [b for b in CODE if not reason_not_to_run(b)], ids=lambda block: block.position)
@pytest.mark.usefixtures("clicks")
def test_code_of_a_page_runs(block: Block, places: Mapping[str, str]) -> None:
    code = adapt(block, places)
    if block.language == "sql":
        assert duckdb.sql(code).columns
        return
    secret = encrypt_values(pa.array([b"ring twice"], pa.binary()), "k1", KEY)[0].as_py()
    names: dict[str, Any] = {"text": secret}
    exec(code.replace("CREATE VIEW", "CREATE OR REPLACE VIEW"), names)
