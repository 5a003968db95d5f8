"""What `validate` says of schemas and records, and how it is shown."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.cli.main import app
from headrace.writer.cli.run.validate import FindingPage, ValidateReport, run_validate
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.config_location import MISSING
from headrace.writer.framing.wire_format import Wire
from headrace.writer.output import tables
from headrace.writer.preflight.checks import source_checks
from headrace.writer.preflight.checks.finding import failure, good
from headrace.writer.schemas.registry import RegistryUnreachable, source
from headrace.writer.schemas.registry_client import without_user
from tests.support.sample_records import EVENT, NOW, TIME, WIDER, config, event, records, tree, value
from tests.support.validation import sample_findings

SILENT = Console(quiet=True)
PAIR = {
    "type": "record", "name": "Pair",
    "fields": [
        {"name": "at", "type": TIME},
        {"name": "body", "type": [
            {"type": "record", "name": "L", "fields": [{"name": "l", "type": "int"}]},
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": "int"}]},
        ]},
    ],
}  # fmt: skip


def field(name, kind):
    return {**EVENT, "fields": [*EVENT["fields"], {"name": name, "type": kind}]}


def test_a_sound_sample_is_fine_in_every_check(tmp_path):
    seen = sample_findings(records([event(n) for n in range(100)], partitions=3), tmp_path)
    assert {check: finding.status for check, finding in seen.items()} == dict.fromkeys(source_checks.SAMPLED, "ok")
    assert seen["event_time"].message.startswith("at, timestamp: 2026-11-20 10:21:00 UTC to 2026-11-20 12:00:00 UTC")
    assert seen["buckets"].message.startswith("3 buckets in the sample: hour=2026-11-20T10 to hour=2026-11-20T12")


@pytest.mark.parametrize(
    ("first", "said"),
    [(b'{"id": 1}', "JSON: "), (b"Obj\x01avro", "an Avro file"), (b"\xc3\x01abc", "single-object"), (b"", "empty")],
)
def test_a_topic_without_headers_is_wrong_and_its_format_guessed(tmp_path, first, said):
    seen = sample_findings(records([first, b"other"]), tmp_path)
    assert seen["wire"].status == "failed"
    assert said in seen["wire"].message
    assert {seen[check].status for check in source_checks.SAMPLED[1:]} == {"not_checked"}


def test_some_values_without_header_are_a_warning(tmp_path):
    seen = sample_findings(records([event(0), b"bare", None]), tmp_path)
    assert seen["wire"].status == "warning"
    assert seen["wire"].message.startswith("1 of 2 values have no Confluent header")
    assert "1 tombstone besides" in seen["wire"].message


def test_records_that_do_not_decode_are_counted_by_reason(tmp_path):
    seen = sample_findings(records([event(0), event(1), event(2)[:-1], event(3)[:-1], event(4) + b"?"]), tmp_path)
    assert seen["decode"].status == "warning"
    assert "2 of 5 values with a header are decoded; 2: the value ends before" in seen["decode"].message
    none = sample_findings(records([event(2)[:-1]]), tmp_path)
    assert (none["decode"].status, none["event_time"].status) == ("failed", "not_checked")


def test_a_schema_that_only_records_name_is_a_warning(tmp_path):
    wider = value(2, WIDER, {"id": 1, "at": NOW, "note": None, "extra": 1})
    seen = sample_findings(records([event(0), wider]), tmp_path, {1: EVENT, 2: WIDER})
    assert seen["decode"].status == "warning"
    assert "schema 2 is registered, but not under the topic's subject" in seen["decode"].message


def test_no_sample_means_not_checked(tmp_path):
    for batch in (records([]), records([None, None])):
        assert {finding.status for finding in sample_findings(batch, tmp_path).values()} == {"not_checked"}


def test_a_few_unbelievable_times_are_a_warning_with_their_share(tmp_path):
    values = [*(event(n) for n in range(9)), event(9, event_time=NOW - timedelta(days=31))]
    seen = sample_findings(records(values), tmp_path)
    assert seen["event_time"].status == "warning"
    assert "1 of 10 rows (10.0%) are outside now - 30 d to now + 1 d: quarantined" in seen["event_time"].message


def test_only_unbelievable_times_are_wrong(tmp_path):
    seen = sample_findings(records([event(n, event_time=NOW - timedelta(days=31)) for n in range(5)]), tmp_path)
    assert (seen["event_time"].status, seen["buckets"].status) == ("failed", "not_checked")


def test_a_number_says_the_unit_that_was_found(tmp_path):
    schema = field("ts", "long")
    instants = [int((NOW - timedelta(seconds=n)).timestamp() * 1000) for n in range(10)]
    values = [value(1, schema, {"id": 1, "at": NOW, "note": None, "ts": at}) for at in instants]
    seen = sample_findings(records(values), tmp_path, {1: schema}, event_time={"field": "ts"})
    assert seen["event_time"].message.startswith("ts, int64 in ms: 2026-11-20 11:59:51 UTC to 2026-11-20 12:00:00 UTC")


def test_nulls_are_counted(tmp_path):
    schema = field("ts", ["null", "long"])
    values = [value(1, schema, {"id": 1, "at": NOW, "note": None, "ts": ts}) for ts in (None, 1763640000000, None)]
    seen = sample_findings(records(values), tmp_path, {1: schema}, event_time={"field": "ts", "max_age": "1000 d"})
    assert "2 of 3 rows (66.7%) have none" in seen["event_time"].message
    nothing = sample_findings(records([values[0]]), tmp_path, {1: schema}, event_time={"field": "ts"})
    assert nothing["event_time"].status == "failed"


def test_a_field_that_is_none_names_those_that_could_be(tmp_path):
    seen = sample_findings(records([event(0)]), tmp_path, event_time={"field": "nope"})
    assert seen["event_time"].status == "failed"
    assert seen["event_time"].fix == "Set event_time.field to one that is: at."


def test_many_buckets_are_a_warning(tmp_path):
    values = [event(n, event_time=NOW - timedelta(minutes=5 * n)) for n in range(150)]
    seen = sample_findings(records(values), tmp_path, bucket={"type": "event_time", "width": "5 min"})
    assert seen["buckets"].status == "warning"
    assert seen["buckets"].message.startswith("150 buckets")


def about(schemas, columns=()):
    plan = SchemaPlan(pa.schema(list(columns)), frozenset({"_offset", "hour"}))
    for schema_id, schema in schemas.items():
        plan = plan.extend(schema_id, json.dumps(schema))
    return list(source_checks._schemas(plan, "clicks-value"))


def test_each_way_to_decode_is_told():
    schemas, pairs, columns = about({1: EVENT, 2: WIDER, 3: PAIR})
    assert (schemas.status, schemas.message) == ("ok", "ids 1, 2: decoded natively")
    assert (pairs.status, pairs.message.split(",")[0]) == ("warning", "id 3: decoded one record at a time")
    assert columns.message.startswith("5: id int64, at timestamp, note string, extra int32, body struct")


@pytest.mark.parametrize(
    ("name", "said"),
    [("ID", "field 'ID' differs from column 'id' only in case"), ("_offset", "a name that headrace keeps for itself"),
     ("Hour", "a name that headrace keeps for itself")],
)  # fmt: skip
def test_a_schema_that_cannot_fill_the_table_is_told_with_the_reason(name, said):
    rejected = next(f for f in about({1: EVENT, 2: field(name, "int")}) if f.message.startswith("rejected"))
    assert rejected.status == "warning"
    assert said in rejected.message


def test_only_rejected_schemas_are_wrong():
    rejected, columns = about({2: field("hour", "int")})
    assert (rejected.status, columns.status) == ("failed", "not_checked")


def test_no_schema_is_a_warning_and_names_the_subject():
    none, columns = about({})
    assert (none.status, columns.status) == ("warning", "not_checked")
    assert "clicks-value" in none.message


def test_an_error_is_taken_apart_into_what_and_mend():
    found = failure("topics", ValueError("topic 'a' does not exist; did you mean 'b'?"))
    assert (found.message, found.fix) == ("topic 'a' does not exist", "Did you mean 'b'?")
    found = failure("broker", ValueError("nobody answers at h:1 (no. 3). Check that it is up."))
    assert (found.message, found.fix) == ("nobody answers at h:1 (no. 3)", "Check that it is up.")


def test_a_password_is_never_shown():
    assert without_user("http://me:sesame@registry:8081/x") == "http://***@registry:8081/x"
    assert without_user("http://registry:8081/x") == "http://registry:8081/x"
    assert without_user("at http://me:s@s/e@r:1 and http://r") == "at http://***@r:1 and http://r"


def test_a_registry_that_does_not_answer_is_named_without_its_password():
    with pytest.raises(RegistryUnreachable) as refused:
        source(Registry(url="http://me:sesame@127.0.0.1:1")).topic_schemas("clicks")
    assert "http://***@127.0.0.1:1 does not answer" in str(refused.value)
    assert "sesame" not in str(refused.value)


def test_a_file_with_faults_is_told_whole_and_other_trouble_with_its_own_mend(tmp_path):
    path = tmp_path / "c.yaml"
    found = run_validate(path, None, offline=True, records=0, now=NOW, out=SILENT).findings[0]
    assert (found.message, found.fix) == (
        f"cannot read {path}: No such file or directory",
        MISSING,
    )  # fmt: skip
    path.write_text("a: [\nb: c\nd: e\n")
    found = run_validate(path, None, offline=True, records=0, now=NOW, out=SILENT).findings[0]
    assert found.message == f"{path} is not YAML: line 3, column 2: expected ',' or ']', but got ':'"
    assert found.fix.startswith("Correct the file.")


def written(tmp_path, **changes):
    path = tmp_path / "headrace.yaml"
    settings = json.loads(config(tmp_path).model_dump_json(exclude_unset=True))
    path.write_text(yaml.safe_dump({**settings, **changes}))
    return path


def run(path, **options):
    given = {"offline": True, "records": 10, "now": datetime.now(UTC), "out": SILENT} | options
    report = run_validate(path, None, **given)
    return report.exit_code, report.document()["findings"]


def test_a_file_that_cannot_be_used_leaves_the_rest_unchecked(tmp_path):
    path = written(tmp_path, kafka={"bootstrap_server": "a:1"})
    code, shown = run(path)
    assert code == 2
    assert shown[0]["check"] == "file"
    assert "did you mean 'bootstrap_servers'" in shown[0]["message"]
    assert {finding["status"] for finding in shown[1:]} == {"not_checked"}


def test_offline_asks_no_server_and_creates_nothing(tmp_path):
    path = written(tmp_path)
    before = tree(tmp_path)
    code, shown = run(path)
    assert code == 0
    assert [f["status"] for f in shown if f["check"] in ("broker", "registry", "topics", "wire")] == ["not_checked"] * 4
    assert tree(tmp_path) == before
    assert set(shown[0]) == {"check", "pipeline", "status", "message", "fix"}
    assert {f["pipeline"] for f in shown} == {None, "clicks"}


def test_schemas_from_files_are_checked_offline_too(tmp_path):
    (tmp_path / "1.avsc").write_text(json.dumps(EVENT))
    code, shown = run(written(tmp_path, registry={"files": {1: str(tmp_path / "1.avsc")}}))
    assert code == 0
    assert [f["status"] for f in shown if f["check"] in ("registry", "schemas", "columns")] == ["ok"] * 3


def test_a_registered_schema_by_which_no_value_is_read_is_named(tmp_path):
    sound = {"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string"}}}
    texts = {1: sound, 2: {**sound, "properties": {"id": {"$ref": "#/nowhere"}}}, 3: EVENT}
    for number, text in texts.items():
        (tmp_path / f"{number}").write_text(json.dumps(text))
    files = {number: str(tmp_path / f"{number}") for number in texts}
    pipeline = json.loads(config(tmp_path, formats=["json_schema"]).model_dump_json(exclude_unset=True))["pipelines"]
    _, shown = run(written(tmp_path, registry={"files": files}, pipelines=pipeline))
    messages = [finding["message"] for finding in shown if finding["check"] == "schemas"]
    assert messages[0] == "id 1: decoded natively"
    assert messages[1].startswith("rejected: schema id 2: $.id: $ref '#/nowhere' leads to no schema")
    assert messages[2] == "rejected: schema id 3: it is an Avro schema, and the pipeline reads json_schema"


def test_a_silent_server_is_wrong_and_what_hangs_on_it_is_not_checked(tmp_path):
    code, shown = run(written(tmp_path), offline=False)
    assert code == 2
    by = {f["check"]: f for f in shown}
    assert (by["broker"]["status"], by["registry"]["status"]) == ("failed", "failed")
    assert by["broker"]["fix"] == "Check kafka.bootstrap_servers, kafka.security and that the cluster is up."
    assert {by[c]["message"] for c in ("topics", *source_checks.SAMPLED)} == {"not checked: no broker answers"}
    assert by["table"]["status"] == "ok"


def test_a_terminal_sees_marks_mends_and_a_sum_within_its_width(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["validate", str(written(tmp_path)), "--sample", "10"])
    assert result.exit_code == 2
    shown = result.output
    assert "  ✗ broker" in shown
    assert "→ Check kafka.bootstrap_servers" in shown
    assert "not checked: no broker answers (wire, decode, event time, buckets, spill)" in " ".join(shown.split())
    assert shown.splitlines()[-1].endswith("2 wrong, 8 not checked")
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80


def test_findings_of_one_reason_share_a_line_and_stay_apart_in_json(capsys):
    from headrace.writer.preflight.checks.finding import not_checked

    findings = [not_checked("a", "x"), not_checked("b", "x"), not_checked("c", "y")]
    page = FindingPage(tables.console())
    for finding in findings:
        page.add(finding)
    page.finish()
    assert capsys.readouterr().out.splitlines() == [
        "  - 2 checks     not checked: x (a, b)",
        "  - c            not checked: y",
    ]
    assert [finding["check"] for finding in ValidateReport(findings).document()["findings"]] == ["a", "b", "c"]


def test_a_check_with_a_long_name_stands_apart_from_what_it_says(capsys):
    page = FindingPage(tables.console())
    page.add(good("decode com.shop.Click", "4 of 4 values"))
    assert "decode com.shop.Click 4 of 4 values" in capsys.readouterr().out


def test_a_topic_that_shows_no_wire_format_is_wrong_with_the_mend(tmp_path):
    seen = sample_findings(records([b'{"id": 1}'] * 30), tmp_path)
    assert seen["wire"].status == "failed"
    assert seen["wire"].message.startswith("none of 30 values has a wire format that can be seen")
    assert seen["wire"].message.endswith('one is JSON: {"id": 1}')
    assert "{format: bare, schema_id: …}" in seen["wire"].fix
    assert seen["decode"].message == "not checked: the wire format is not known"


def test_values_of_two_wire_formats_are_wrong_and_nothing_is_guessed(tmp_path):
    eight = [Wire("apicurio", "global").value_header(1) + event(number)[5:] for number in range(10)]
    seen = sample_findings(records([*eight, *(event(number) for number in range(10))]), tmp_path)
    assert seen["wire"].status == "failed"
    assert "10 of 20 values have a Confluent header" in seen["wire"].message
    assert "10 of 20 values have a header of Apicurio" in seen["wire"].message
    assert seen["wire"].fix.endswith("the list of those that are to be read, such as [apicurio, confluent].")


def test_values_by_fingerprint_are_decoded_by_the_registered_schemas(tmp_path):
    head = Wire("single_object", "fingerprint").value_header(crc_fingerprint(json.dumps(EVENT)))
    seen = sample_findings(records([head + event(number)[5:] for number in range(30)]), tmp_path)
    assert seen["wire"].message == "30 of 30 values have a single-object header (C3 01 and an 8-byte fingerprint)"
    assert (seen["decode"].status, seen["decode"].message) == ("ok", "30 of 30 values with a header are decoded")
