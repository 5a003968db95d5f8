"""`headrace test`: records of files through the steps of a task, what it finds, and how it shows that."""

import hmac
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.errors import ConfigError
from headrace.writer.preflight.testing.case import read as read_case
from tests.support.protobuf_orders import MANY
from tests.support.sample_records import EVENT, WIDER

ROOT = Path(__file__).parents[2]
# _pytest.compat.running_on_ci asks for these.
CI_VARIABLES = ("CI", "BUILD_NUMBER")
NOW = "2026-11-20T12:00:00Z"
SPEC = {"where": "id % 2 = 0", "sample": {"share": "90 %", "by": "id"}, "derive": {"ratio": "10 / (id - 4)"}}


def good(number: int, at: str = "2026-11-20T11:30:00Z") -> dict[str, Any]:
    return {"value": {"id": number, "at": at, "note": None}}


class Files:
    """A configuration and test files in a folder that is the current one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "specs").mkdir()
        for name, schema in (("event", EVENT), ("wider", WIDER)):
            (root / "specs" / f"{name}.avsc").write_text(json.dumps(schema))

    def pipeline(self, **settings: Any) -> None:
        """Write a configuration whose servers and secrets nobody has."""
        clicks = {
            "topics": ["clicks"], "table": {"location": "s3://lake/clicks"},
            "event_time": {"field": "at", "max_age": "30 d"}, **settings,
        }  # fmt: skip
        servers = {
            "kafka": {"bootstrap_servers": "${env:NO_BROKERS}"}, "checkpoints": "s3://lake/checkpoints",
            "registry": {
                "url": "${env:NO_REGISTRY}",
                "login": {"type": "basic", "user": "me", "password": "${file:/no/secret}"},
            },
        }  # fmt: skip
        keys = {"keys": {"file": "/no/keyring"}} if "privacy" in settings else {}
        (self.root / "pipelines.yaml").write_text(yaml.safe_dump({**servers, **keys, "pipelines": {"clicks": clicks}}))

    def case(self, records: Any, expect: Any, name: str = "clicks", **more: Any) -> Path:
        path = self.root / "specs" / f"{name}.test.yaml"
        document = {"config": "../pipelines.yaml", "now": NOW, "schema": "event.avsc", "records": records, **more}
        path.write_text(yaml.safe_dump({**document, "expect": expect}, sort_keys=False))
        return path

    def run(self, *words: str, columns: int = 80) -> Result:
        return CliRunner().invoke(app, ["test", *words], env={"COLUMNS": str(columns)})

    def passes(self, *words: str) -> str:
        done = self.run(*words)
        assert done.exit_code == 0, done.output + str(done.exception)
        return done.output

    def mistake(self, *words: str) -> str:
        done = self.run(*words)
        assert getattr(done.exception, "exit_code", None) == 2, done.output
        return str(done.exception)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pytest shorten its summary to the terminal's width: it does not where a CI server sets a variable."""
    for variable in CI_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    new_files = Files(tmp_path)
    new_files.pipeline()
    return new_files


@pytest.mark.parametrize(("divisor", "code"), [("1000", 0), ("100", 1)])
def test_the_example_of_the_documentation_gives_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, divisor: str, code: int
) -> None:
    copytree(ROOT / "docs" / "examples" / "shop", tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    config = Path("pipelines.yaml")
    config.write_text(config.read_text().replace("duration_ms / 1000", f"duration_ms / {divisor}"))
    result = CliRunner().invoke(app, ["test"], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    page = (ROOT / "docs" / "TESTING.md").read_text()
    assert rules(result.output) in rules(page)
    assert (ROOT / "docs" / "examples" / "shop" / "pipelines.yaml").read_text() in page


def test_a_record_may_have_every_exit(files: Files) -> None:
    files.pipeline(specs={"Event": SPEC}, seal={"late": [{"within": "2 h", "to": "late_table"}, {"to": "dead_letter"}]})
    late = {"closed_until": "2026-11-20T10:00:00Z"}
    records = {
        "a row": good(2), "an odd one": good(3), "not of the sample": good(6), "a failing one": good(4),
        "no Avro": {"hex": "7b7d"}, "cut off": {"hex": "00 00000001 02"}, "of another schema": {"hex": "000000004d 02"},
        "an old one": good(8, "2026-09-20T11:00:00Z"), "a late one": good(10, "2026-11-20T09:59:00Z"),
        "a later one": good(12, "2026-11-20T05:59:00Z"), "none": {"value": None},
    }  # fmt: skip
    outside = {"exit": "quarantined", "reason": "2026-09-20 11:00:00.000000Z, outside"}
    row = {"row": {"id": 2, "note": None, "at": "2026-11-20T11:30:00Z", "ratio": -5, "_offset": 0}}
    expect = {
        "a row": {"bucket": "hour=2026-11-20T11", **row},
        "an odd one": {"exit": "filtered", "spec": "Event", "rule": "where"},
        "not of the sample": {"exit": "filtered", "rule": "sample"},
        "a failing one": {"exit": "dead_letter", "reason": "derive.ratio: Divide by zero"},
        "no Avro": {"exit": "dead_letter", "reason": "no Confluent header"},
        "cut off": {"exit": "dead_letter", "reason": "the value ends before the record does"},
        "of another schema": {"exit": "dead_letter", "reason": "schema id 77 is unknown to the registry"},
        "an old one": outside, "a late one": {"exit": "late", "bucket": "hour=2026-11-20T09"},
        "a later one": {"exit": "dead_letter", "reason": "late: at is 2026-11-20"}, "none": "tombstone",
    }  # fmt: skip
    files.case(records, expect, counts={"row": 1, "filtered": 2, "late": 1, "tombstone": 1, "dead_letter": 5}, **late)
    assert "12 passed" in files.passes()
    files.pipeline(specs={"Event": SPEC}, seal={"enabled": False})
    assert "expected late, got row in bucket hour=2026-11-20T09" in files.run(columns=160).output


def test_without_a_closed_bucket_no_row_is_late_and_reopen_makes_rows_of_late_ones(files: Files) -> None:
    files.case({"a": good(1, "2026-11-20T02:00:00Z")}, {"a": "row"})
    files.case({"a": good(1, "2026-11-20T02:00:00Z")}, {"a": "row"}, "late", closed_until=NOW)
    files.passes()


def test_keys_and_headers_fill_their_columns(files: Files) -> None:
    header = {"header": "source", "type": "long"}
    files.pipeline(columns={"key": {"type": "avro", "name": "k"}, "headers": "h", "header_columns": {"s": header}})
    (files.root / "specs" / "key.avsc").write_text('["null", "long", "string"]')
    keyed = {
        "both": {**good(1), "key": 7, "headers": {"source": "5"}}, "text": {**good(2), "key": {"string": "x"}},
        "no number": {**good(3), "key": 7, "headers": {"source": "web"}}, "no key": {**good(4), "key": None},
    }  # fmt: skip
    expect = {
        "both": {"row": {"k": {"member0": 7, "member1": None}, "h": {"source": "35"}, "s": 5}},
        "text": {"row": {"k": {"member0": None, "member1": "x"}, "h": None, "s": None}},
        "no number": {"exit": "dead_letter", "reason": "the header 'source' is no long"},
        "no key": {"row": {"k": None}},
    }  # fmt: skip
    files.case(keyed, expect, key_schema="key.avsc")
    files.passes()
    files.pipeline(columns={"key": {"type": "string", "name": "k"}})
    files.case({"a": {**good(1), "key": "x"}}, {"a": {"row": {"k": "x"}}})
    files.passes()


def test_protected_fields_have_the_hashes_of_the_published_key(files: Files) -> None:
    files.pipeline(privacy={"fields": {"note": "hash"}})
    noted = {"a": {"value": {"id": 1, "at": NOW, "note": {"string": "Zoë"}}}}
    hashed = hmac.new(b"k" * 32, "Zoë".encode(), "sha256").hexdigest()
    files.case(noted, {"a": {"row": {"note": hashed}}})
    files.passes()
    files.pipeline(privacy={"fields": {"note": "encrypt"}})
    files.case(noted, {"a": {"row": {"note": "Zoë"}}})
    assert "hr1.k1." in files.run().output


WIRES: Mapping[str, Any] = {
    "auto": "auto", "confluent": "confluent", "apicurio": "apicurio", "single_object": "single_object",
    "header": {"format": "header", "header": "apicurio.value.globalId"}, "bare": {"format": "bare", "schema_id": 9},
}  # fmt: skip


@pytest.mark.parametrize("wire", WIRES)
def test_records_have_the_wire_format_that_the_pipeline_reads(files: Files, wire: str) -> None:
    files.pipeline(wire=WIRES[wire])
    records = {"a": good(1), "none": {"value": None}}
    if wire != "bare":  # which has one schema
        records["b"] = {**good(2), "schema": "wider.avsc"}
        records["b"]["value"]["extra"] = 5
    expect = {"a": {"row": {"id": 1}}, "b": {"row": {"id": 2, "extra": 5}}, "none": "tombstone"}
    files.case(records, {name: expect[name] for name in records})
    files.passes()


NAMED_WIRES: Mapping[str, Any] = {
    "confluent": "confluent",
    "apicurio": "apicurio",
    "header, confluent": {"format": "header", "header": "__value_schema_id"},
    "header, apicurio": {"format": "header", "header": "apicurio.value.contentId"},
}


@pytest.mark.parametrize("wire", NAMED_WIRES)
def test_records_name_their_message_as_the_wire_format_does(files: Files, wire: str) -> None:
    (files.root / "specs" / "shop.proto").write_text(MANY)
    files.pipeline(wire=NAMED_WIRES[wire], formats=["protobuf"])
    records = {
        "a": {**good(1), "message": "acme.Order"},
        "b": {"value": {"id": 2, "at": "2026-11-20T11:30:00Z", "why": "late"}, "message": "acme.Refund"},
    }
    for record in records.values():
        record["value"].pop("note", None)
    files.case(records, {"a": {"row": {"id": 1}}, "b": {"row": {"id": 2, "why": "late"}}}, schema="shop.proto")
    files.passes()


def test_a_route_has_the_columns_and_the_settings_of_each_table(files: Files) -> None:
    order = {"type": "record", "name": "shop.Order", "fields": [
        {"name": "id", "type": "string"}, {"name": "at", "type": {"type": "int", "logicalType": "date"}},
    ]}  # fmt: skip
    untimed = {"type": "record", "name": "shop.Untimed", "fields": [{"name": "id", "type": "string"}]}
    for name, schema in (("order", order), ("untimed", untimed), ("other", {**untimed, "name": "Other"})):
        (files.root / "specs" / f"{name}.avsc").write_text(json.dumps(schema))
    files.pipeline(route={"targets": {
        "Event": "s3://lake/event",
        "shop.*": {"location": "s3://lake/{name}", "bucket": {"type": "event_time", "width": "1 d"}},
    }})  # fmt: skip
    records = {
        "event": good(1), "order": {"schema": "order.avsc", "value": {"id": "x", "at": "2026-11-20"}},
        "untimed": {"schema": "untimed.avsc", "value": {"id": "x"}},
        "other": {"schema": "other.avsc", "value": {"id": "x"}}, "cut off": {"hex": "0000000001"},
        "none": {"value": None},
    }  # fmt: skip
    expect = {
        "event": {"table": "Event", "bucket": "hour=2026-11-20T11", "row": {"id": 1}},
        "order": {"table": "shop.Order", "bucket": "day=2026-11-20", "row": {"id": "x", "at": "2026-11-20"}},
        "untimed": {"exit": "dead_letter", "reason": "event_time"},
        "other": {"exit": "dead_letter", "reason": "no target of the route matches it"},
        "cut off": "dead_letter", "none": "tombstone",
    }  # fmt: skip
    files.case(records, expect, counts={"row": {"Event": 1, "shop.Order": 1}, "dead_letter": 3})
    files.passes()
    expect["order"] = {"row": {"note": 1}}
    files.case(records, expect)
    assert "no such column; known here: id, at\n" in files.run(columns=120).output, "those of other tables are not its"


def test_a_route_by_a_header_takes_what_comes(files: Files) -> None:
    files.pipeline(route={"by": {"header": "kind"}, "targets": {"*": "s3://lake/{name}"}})
    wider = {"schema": "wider.avsc", "value": {**good(2)["value"], "extra": 3}, "headers": {"kind": "b"}}
    records = {"a": {**good(1), "headers": {"kind": "a"}}, "b": wider, "c": good(3)}
    reason = {"exit": "dead_letter", "reason": "the route goes by the header 'kind', and there is none"}
    files.case(records, {"a": {"table": "a"}, "b": {"table": "b", "row": {"extra": 3}}, "c": reason})
    files.passes()


FAILING = """\
============================= test session starts ==============================
collected 4 items

specs/clicks.test.yaml .FFF                                              [100%]

=================================== FAILURES ===================================
_________________________________ a wrong row __________________________________
bucket: expected hour=2026-11-20T12, got hour=2026-11-20T11
row.note: expected "none", got null
row.nota: expected 1, got no such column; did you mean 'note'?

specs/clicks.test.yaml: record clicks/0:1
____________________________________ no row ____________________________________
exit: expected row, got dead_letter: no Confluent header (magic byte 0 and a 4-byte schema id)

specs/clicks.test.yaml: record clicks/0:2
_________________________________ not expected _________________________________
exit: expected nothing: the test file does not say, got tombstone

specs/clicks.test.yaml: record clicks/0:3
=========================== short test summary info ============================
FAILED specs/clicks.test.yaml::a wrong row - Failed: bucket: expected hour=20...
FAILED specs/clicks.test.yaml::no row - Failed: exit: expected row, got dead_...
FAILED specs/clicks.test.yaml::not expected - Failed: exit: expected nothing:...
========================= 3 failed, 1 passed in TIME ==========================
"""


def failing(files: Files) -> Path:
    wrong = {"bucket": "hour=2026-11-20T12", "row": {"id": 2, "note": "none", "nota": 1}}
    records = {"a row": good(1), "a wrong row": good(2), "no row": {"hex": "00"}, "not expected": {"value": None}}
    return files.case(records, {"a row": "row", "a wrong row": wrong, "no row": "row"})


def rules(text: str) -> str:
    """Text whose rules are of one sign, and whose time is not that of this machine."""
    return re.sub(r"([=_])\1+", r"\1", re.sub(r"in \d+\.\d\ds", "in TIME", text))


def test_pytest_shows_what_fails(files: Files) -> None:
    failing(files)
    done = files.run()
    assert done.exit_code == 1
    assert rules(done.output) == rules(FAILING)
    shown = files.run("-v").output
    assert "specs/clicks.test.yaml::a row PASSED" in shown
    assert "specs/clicks.test.yaml::a wrong row FAILED" in shown


@pytest.mark.parametrize("variable", CI_VARIABLES)
def test_a_summary_on_a_ci_server_has_whole_reasons(
    files: Files, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    failing(files)
    monkeypatch.setenv(variable, "true")
    summary = files.run().output.partition("short test summary info")[2]
    assert "bucket: expected hour=2026-11-20T12, got hour=2026-11-20T11" in summary
    assert "..." not in summary


def test_the_first_failure_may_end_a_run(files: Files) -> None:
    failing(files)
    assert "1 failed, 1 passed in" in files.run("-x").output


@pytest.mark.slow
def test_workers_of_xdist_run_the_files_and_send_what_they_found(files: Files) -> None:
    failing(files)
    files.case({"a": good(1)}, {"a": "row"}, "other")
    one_process = json.loads(files.run("--json").output)
    document = json.loads(files.run("--json", "-n", "2").output)
    assert (document["passed"], document["failed"]) == (2, 3)

    def by_path(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(files, key=lambda file: file["path"])

    assert by_path(document["files"]) == by_path(one_process["files"])


@pytest.mark.parametrize(
    "workers", [pytest.param([], id="here"), pytest.param(["-n", "1"], id="in a worker", marks=pytest.mark.slow)]
)
def test_no_code_and_no_setting_of_the_directory_has_an_effect(files: Files, workers: list[str]) -> None:
    files.case({"a": good(1)}, {"a": "row"})
    for folder in (files.root, files.root / "specs"):
        for name in ("conftest.py", "test_other.py", "json.py", "yaml.py", "sitecustomize.py"):
            (folder / name).write_text("raise SystemExit('code of the directory ran')\n")
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    command = [sys.executable, "-P", "-c", "from headrace.writer.cli.main import main; main()", "test", *workers]
    done = subprocess.run(command, cwd=files.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed in" in done.stdout
    files_of_test = {"pipelines.yaml", "specs"}
    new_files = {path.name for path in files.root.iterdir()} - files_of_test
    assert new_files <= {"conftest.py", "test_other.py", "json.py", "yaml.py", "sitecustomize.py", "pytest.ini"}


def test_an_option_of_pytest_keeps_its_value(files: Files) -> None:
    files.case({"a row": good(2)}, {"a row": {"bucket": "hour=2026-11-20T11"}})
    assert "slowest 3 durations" in files.passes("specs/", "--", "--durations", "3", "-vv")
    assert "slowest 3 durations" in files.passes("--", "--durations", "3", "-vv")
    assert "1 passed" in files.passes("--", "specs/clicks.test.yaml")


def test_without_pytest_the_extra_is_named(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xdist", None)
    assert files.mistake() == "headrace test needs pytest and pytest-xdist: pip install 'headrace[test]'"


def test_json_and_junit_say_the_same(files: Files) -> None:
    failing(files)
    files.case({"odd \x07 <&>": good(1)}, {"odd \x07 <&>": {"row": {"note": "\x01<"}}}, "odd")
    document = json.loads(files.run("--json", "--junit", "out.xml").output)
    assert (document["passed"], document["failed"], document["errors"]) == (1, 4, 0)
    (suite,) = ET.parse(files.root / "out.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["5", "4", "0"]
    tests = [(file["path"], test) for file in document["files"] for test in file["tests"]]
    for case, (path, test) in zip(suite, tests, strict=True):
        assert case.get("classname") == path.replace("/", ".")
        assert case.get("name") == test["name"].replace("\x07", "#x07")
        failure = case.find("failure")
        assert (failure is None) == test["passed"]
        for difference in test["differences"] if failure is not None else ():
            assert difference["what"] in (failure.text or "")
            assert difference["got"] in (failure.text or "")


@pytest.mark.parametrize("flags", [[], ["-n", "2"]])
def test_results_are_shown_whose_junit_file_cannot_be_written(files: Files, flags: list[str]) -> None:
    failing(files)
    shown = json.loads(files.run("--json", *flags).output)
    (files.root / "full.xml").symlink_to("/dev/full")
    failed = files.run("--json", *flags, "--junit", "full.xml")
    document = json.loads(failed.output)
    assert {**document, "seconds": 0} == {**shown, "seconds": 0}
    message = "--junit full.xml cannot be written: No space left on device. Name another file."
    assert str(failed.exception) == message
    page = files.run(*flags, "--junit", "full.xml")
    assert f"{shown['failed']} failed" in page.output
    assert str(page.exception) == message


def test_an_update_that_cannot_be_written_is_a_sentence(files: Files) -> None:
    files.case({"a row": good(1)}, "missing/found.yaml")
    assert files.mistake("--update", "--yes") == (
        "specs/missing/found.yaml cannot be written: No such file or directory. Make it writable, and run it again."
    )


@pytest.mark.parametrize("is_edited", [False, True])
def test_what_a_person_agreed_to_is_written_and_shown_once(files: Files, is_edited: bool) -> None:
    path = failing(files)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headrace.writer.cli", "test", "--update"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    page = ""
    with subprocess.Popen(
        command, cwd=files.root, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as asked:
        os.close(theirs)
        # Linux ends a terminal without a process by an error.
        with suppress(OSError):
            while text := os.read(ours, 65_536).decode(errors="replace"):
                page += text
                if page.endswith("[y/N]: "):
                    if is_edited:
                        path.write_text("# mine\n" + path.read_text())
                    os.write(ours, b"y\n")
    os.close(ours)
    assert page.count("+  not expected: tombstone") == 1
    assert asked.returncode == (2 if is_edited else 0), page
    assert ("has changed since its update was shown" in page) == is_edited
    assert path.read_text().startswith("# mine\n") == is_edited
    assert ("not expected: tombstone" in path.read_text()) != is_edited


def test_an_update_is_shown_first_and_then_it_passes(files: Files) -> None:
    path = failing(files)
    path.write_text("# why\n" + path.read_text() + "\n# behind it\npipeline: clicks\n")
    before = path.read_text()
    done = files.run("--update")
    assert done.exit_code == 1, "the tests fail still"
    assert "3 failed" in done.output
    assert "\n+  not expected: tombstone\n" in done.output
    assert "The same with --yes does it." in done.output
    assert files.run("--update", "--yes", "--dry-run").exit_code == 1
    assert path.read_text() == before
    written = files.passes("--update", "--yes")
    assert "`expect` is rewritten" in written
    assert "4 passed" in written, "the files are tested again"
    after = path.read_text()
    assert (after.splitlines()[0], after.splitlines()[-2:]) == ("# why", ["# behind it", "pipeline: clicks"])
    assert after.partition("expect:")[0] == before.partition("expect:")[0]
    expect = yaml.safe_load(after)["expect"]
    assert expect["a row"] == "row", "what is as expected stays as it is"
    assert expect["a wrong row"] == {"bucket": "hour=2026-11-20T11", "row": {"id": 2, "note": None}}
    assert expect["not expected"] == "tombstone"
    assert "4 passed" in files.passes()
    assert "Nothing" not in files.passes("--update", "--yes")
    assert path.read_text() == after


def test_an_update_changes_the_lines_of_what_changes_alone(files: Files) -> None:
    path = files.case({"a": good(1), "b": good(2), "c": good(3), "d": {"value": None}}, {})
    text = path.read_text().replace(
        "expect: {}\n",
        """expect:
    # the first one
    a: {row: {id: 0x1,  at: 2026-11-20T11:30:00Z}}   # as it is
    b:
        row:
            id: 1_000  # wrong

            at: '2026-11-20T11:30:00+00:00'
        exit: row

    c: {exit: late,   bucket: hour=2026-11-20T11} # moved
counts: {row: 3}
""",
    )
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert files.run("--update", "--yes").exit_code == 0
    wanted = text.replace("id: 1_000", "id: 2").replace(
        "{exit: late,   bucket: hour=2026-11-20T11}",
        "{exit: row,   bucket: hour=2026-11-20T11, row: {id: 3, at: '2026-11-20T11:30:00Z', note: null}}",
    )
    assert path.read_bytes().decode() == wanted.replace("\n", "\r\n")


def test_an_update_exits_1_for_what_it_does_not_change(files: Files) -> None:
    path = files.case({"a": good(1), "b": good(2)}, {"a": "late"}, counts={"row": 7})
    document = json.loads(files.run("--update", "--json").output)
    assert [update["path"] for update in document["updates"]] == ["specs/clicks.test.yaml"]
    assert "-  a: late\n+  a:" in document["updates"][0]["diff"]
    done = files.run("--update", "--yes", "--json")
    document = json.loads(done.output)
    assert (done.exit_code, document["failed"], len(document["updates"])) == (1, 1, 1)
    assert yaml.safe_load(path.read_text())["counts"] == {"row": 7}
    done = files.run("--update", "--yes", columns=200)
    assert done.exit_code == 1
    assert "--update changes nothing: `counts`, and what is refused, stay as they are." in done.output
    files.pipeline(specs={"Event": {"where": "idd = 1"}})
    assert files.run("--update", "--yes").exit_code == 1


INNER = {"type": "array", "items": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}}


def test_an_update_writes_whole_rows_and_the_file_that_is_named(files: Files) -> None:
    every = {"type": "record", "name": "Every", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}}, {"name": "raw", "type": "bytes"},
        {"name": "f", "type": "float"}, {"name": "d", "type": "double"}, {"name": "b", "type": "boolean"},
        {"name": "m", "type": {"type": "map", "values": "long"}}, {"name": "l", "type": INNER},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["ON", "OFF"]}},
        {"name": "text", "type": "string"},
    ]}  # fmt: skip
    (files.root / "specs" / "every.avsc").write_text(json.dumps(every))
    value = {
        "at": "2026-11-20T11:30:00.123456Z", "money": 12.5, "day": "2026-11-20", "raw": "\x00\xff", "f": 0.1,
        "d": float("nan"), "b": True, "m": {"no": 1, "1": 2}, "l": [{"x": 1}], "e": "ON", "text": "2026-11-20",
    }  # fmt: skip
    files.case({"a": {"schema": "every.avsc", "value": value}, "b": good(1)}, "expected.yaml")
    files.run("--update", "--yes")
    document = yaml.safe_load((files.root / "specs" / "expected.yaml").read_text())
    assert document["a"]["row"] == {
        "at": "2026-11-20T11:30:00.123456Z", "money": "12.50", "day": "2026-11-20", "raw": "00ff",
        "f": 0.10000000149011612, "d": "nan", "b": True, "m": {"no": 1, "1": 2}, "l": [{"x": 1}], "e": "ON",
        "text": "2026-11-20", "id": None, "note": None,
    }  # fmt: skip
    assert "2 passed" in files.passes()
    files.case({"a": {"schema": "every.avsc", "value": value}}, {"a": {"row": {"f": 0.1, "d": float("nan")}}})
    files.passes()
    changed = {"money": 12.51, "day": "2026-11-21", "raw": "00fe", "b": 1, "m": {"no": 1}, "l": [], "d": 1.0, "text": 5}
    files.case({"a": {"schema": "every.avsc", "value": value}}, {"a": {"row": changed}})
    (test,) = json.loads(files.run("--json").output)["files"][0]["tests"]
    assert {difference["what"] for difference in test["differences"]} == {f"row.{name}" for name in changed}


def test_an_update_adds_no_key_to_what_is_named(files: Files) -> None:
    path = files.case({"a": good(1), "b": good(2)}, {"a": {"bucket": "hour=2026-11-20T01"}})
    path.write_text(path.read_text().replace("expect:", "\nexpect:"))
    files.run("--update", "--yes")
    document = yaml.safe_load(path.read_text())["expect"]
    assert document["a"] == {"bucket": "hour=2026-11-20T11"}
    assert document["b"]["row"] == {"id": 2, "at": "2026-11-20T11:30:00Z", "note": None}
    assert "\n\nexpect:\n" in path.read_text()
    path.write_text(path.read_text().partition("\nexpect:")[0])
    files.run("--update", "--yes")
    assert "2 passed" in files.passes(), "a section that was not there is made"
    path.write_text(path.read_text().partition("expect:")[0] + "expect: {a: late,\nb: row}\n")
    files.run("--update", "--yes")
    assert path.read_text().endswith(",\nb: row}\n")
    assert "2 passed" in files.passes()
    path.write_text(path.read_text().partition("expect:")[0] + "expect: {a: &x {exit: late}, b: *x}\n")
    assert "is not rewritten: expect cannot be told" in files.mistake("--update", "--yes")


def test_a_reference_that_stands_in_the_way_may_have_a_value(files: Files) -> None:
    files.pipeline(table={"location": "${env:LAKE}/clicks"})
    files.case({"a": good(1)}, {"a": "row"})
    done = files.run(columns=200)
    assert done.exit_code == 2
    assert "pipelines.clicks.table.location: ${env:LAKE} is without a value" in done.output
    files.case({"a": good(1)}, {"a": "row"}, variables={"LAKE": "/lake"})
    files.passes()


@pytest.mark.parametrize("form", ["parquet", "iceberg"])
def test_a_table_of_any_format_is_not_asked(files: Files, form: str) -> None:
    files.pipeline(table={"location": "s3://lake/clicks", "format": form})
    config = yaml.safe_load((files.root / "pipelines.yaml").read_text())
    config["catalog"] = {"type": "rest", "uri": "${env:NO_CATALOG}"}
    (files.root / "pipelines.yaml").write_text(yaml.safe_dump(config))
    files.case({"a": good(1)}, {"a": "row"}, variables={"NO_CATALOG": "http://127.0.0.1:1"})
    files.passes()


def test_tests_are_chosen_by_text_and_none_is_exit_5(files: Files) -> None:
    failing(files)
    assert "1 passed, 3 deselected in" in files.passes("-k", "ROW and not wrong and not no")
    assert files.run("-k", "nothing").exit_code == 5
    (files.root / "empty").mkdir()
    done = files.run("empty")
    assert (done.exit_code, "no tests ran" in done.output) == (5, True)
    assert "leave -k and -n out" in files.mistake("-k", "a", "--update")


def test_a_refusal_of_a_start_is_an_error_of_the_file(files: Files) -> None:
    files.pipeline(specs={"Event": {"where": "idd = 1"}})
    files.case({"a": good(1)}, {"a": "row"})
    done = files.run("--junit", "out.xml", columns=120)
    assert done.exit_code == 1
    assert "where: no schema of its records has a column 'idd'; did you mean 'id'?" in done.output
    assert done.output.splitlines()[-1].strip("= ").startswith("1 error in")
    assert "ERROR specs/clicks.test.yaml::a" in done.output
    document = json.loads(files.run("--json").output)
    assert (document["errors"], document["files"][0]["tests"]) == (1, [])
    assert "has a column 'idd'" in document["files"][0]["error"]
    (suite,) = ET.parse(files.root / "out.xml").getroot()
    assert suite.get("errors") == "1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expct": {}}, "file: unknown key 'expct'; did you mean 'expect'?"),
        ({"now": "noon"}, "now: 'noon' is no time; write 2026-11-20T12:00:00Z"),
        ({"config": "../nope.yaml"}, "cannot read nope.yaml"),
        ({"pipeline": "click"}, "the configuration has no pipeline 'click'; did you mean 'clicks'?"),
        ({"records": {"a": {"vale": 1}}}, "records.a: unknown key 'vale'; did you mean 'value'?"),
        ({"records": {"a": {}}}, "records.a: give it a `value`, which is null for a tombstone, or `hex`"),
        ({"records": {"a": {"hex": "0"}}}, "records.a: hex: '0' is no row of pairs of hexadecimal digits"),
        ({"records": {"a": {"value": {"idd": 1}}}}, "records.a.value: idd: the schema has no such field; did you mean"),
        ({"records": {"a": {"value": {"id": 1}}}}, "records.a.value: at: it is missing, and the schema has no default"),
        ({"records": {"a": {**good(1), "schema": "no.avsc"}}}, "records.a.value: specs/no.avsc: No such file"),
        ({"records": {"a": {**good(1), "key": 5}}}, "records.a.key: 5 is no text; put it in quotes, or give the test"),
        ({"records": {"a": good(1), "b": {**good(1), "offset": 0}}}, "records.b: there are two records at clicks/0:0"),
        ({"schema": None}, "records.a.value: there is no schema for it; set `schema`, of the record or of the test"),
        ({"records": "none.jsonl"}, "cannot read specs/none.jsonl"),
        ({"records": "event.avsc"}, "specs/event.avsc holds no sample of this release"),
        ({"expect": {"b": "row"}}, "expect.b: there is no such record; known here: a"),
        ({"expect": {"a": "rows"}}, "expect.a: Input should be 'row', 'late'"),
        ({"expect": {"a": {"exit": "filtered", "bucket": "x"}}}, "'bucket' goes with exit row or late, not with"),
        ({"counts": {"rows": 1}}, "counts.rows"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_with_file_and_key(files: Files, change: Mapping[str, Any], message: str) -> None:
    path = files.case({"a": good(1)}, {"a": "row"})
    document = {**yaml.safe_load(path.read_text()), **change}
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_case(path.relative_to(files.root))


def test_the_command_shows_the_sentence_of_a_mistake(files: Files) -> None:
    files.case({"a": good(1)}, {"a": "row"}, expct={})
    done = files.run(columns=500)
    assert done.exit_code == 2
    assert "file: unknown key 'expct'; did you mean 'expect'?" in done.output


def test_json_has_why_a_file_cannot_be_used(files: Files) -> None:
    files.case({"a": good(1)}, {"a": "row"}, expct={})
    done = files.run("--json")
    assert done.exit_code == 2
    (file,) = json.loads(done.output)["files"]
    assert file["path"] == "specs/clicks.test.yaml"
    assert "unknown key 'expct'" in file["error"]


def test_one_mistake_in_a_spec_is_one_error_of_all_files_and_tests(files: Files) -> None:
    files.pipeline(specs={"Event": {"derive": {"twice": "idd * 2"}}})
    files.case({"a": good(1), "b": good(2)}, {"a": "row", "b": "row"})
    other = files.root / "specs" / "deep"
    other.mkdir()
    document = yaml.safe_load((files.root / "specs" / "clicks.test.yaml").read_text())
    document |= {"config": "../../pipelines.yaml", "schema": "../event.avsc"}
    (other / "more.test.yaml").write_text(yaml.safe_dump(document))
    done = files.run(columns=200)
    assert done.exit_code == 1
    assert done.output.count("\npipelines.clicks.specs.Event: derive.twice: ") == 1
    assert "3 skipped, 1 error" in done.output
    files.pipeline(specs={"Event": {"derve": {"twice": "id * 2"}}})
    done = files.run(columns=200)
    assert done.exit_code == 2
    assert done.output.count("\n  pipelines.clicks.specs.Event: unknown key 'derve'; did you mean 'derive'?") == 1
    assert "1 skipped, 1 error" in done.output
