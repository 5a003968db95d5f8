"""`validate` warns of rules of a bucket that take files which a table still names."""

from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.writer.config.pipelines import Config
from headrace.writer.preflight.checks.finding import Finding
from headrace.writer.preflight.checks.host_checks import ProbedLocations
from headrace.writer.preflight.checks.lifecycle_check import check_lifecycle
from tests.servers.objects import ObjectServer
from tests.support.sample_records import config

pytestmark = pytest.mark.slow

NEXT_DECADE = datetime(2031, 1, 2, tzinfo=UTC)
DELETES_ALL = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}
OLD_VERSIONS = {**DELETES_ALL, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}
del OLD_VERSIONS["Expiration"]
HARMLESS = [
    {**DELETES_ALL, "Status": "Disabled"},
    {**DELETES_ALL, "Filter": {"Prefix": "lake/other/"}},
    {**DELETES_ALL, "Filter": {"Prefix": "lake/clicks-of-old/"}},
    {**DELETES_ALL, "Filter": {"Tag": {"Key": "a", "Value": "b"}}},
    {**DELETES_ALL, "Filter": {"And": {"Prefix": "lake/", "Tags": [{"Key": "a", "Value": "b"}]}}},
    {**DELETES_ALL, "Expiration": {"ExpiredObjectDeleteMarker": True}},
    OLD_VERSIONS,
]
REMOVING = [
    (DELETES_ALL, "rule old deletes them after 30 days"),
    ({**DELETES_ALL, "Expiration": {"Days": 1}}, "rule old deletes them after 1 day"),
    ({**DELETES_ALL, "Filter": {"Prefix": "lake/cl"}}, "rule old deletes them after 30 days"),
    ({**DELETES_ALL, "Filter": {"Prefix": "lake/clicks/hour="}}, "rule old deletes them after 30 days"),
    ({**DELETES_ALL, "Expiration": {"Date": NEXT_DECADE}}, "rule old deletes them from 2031-01-02 00:00:00 UTC on"),
]


def with_rules(server: ObjectServer, rules: list[dict[str, Any]], root: Any) -> Config:
    """Give a new bucket these rules. Returns the configuration of a pipeline whose table lies in it."""
    bucket = server.bucket()
    if rules:
        client: Any = server.client()
        name = bucket.removeprefix("s3://")
        client.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": rules})
    return config(root, table={"location": f"{bucket}/lake/clicks"})


def findings(settings: Config) -> list[Finding]:
    """Return what `validate` finds of the buckets' rules."""
    return list(check_lifecycle("clicks", settings, ProbedLocations(settings.stores), offline=False))


def test_a_bucket_without_rules_and_with_harmless_ones_is_good(on_s3, tmp_path):
    for rules in ([], *([rule] for rule in HARMLESS)):
        (finding,) = findings(with_rules(on_s3, rules, tmp_path))
        assert (finding.check, finding.status) == ("lifecycle", "ok"), rules


@pytest.mark.parametrize(("rule", "text"), REMOVING)
def test_a_rule_that_takes_current_objects_of_the_table_is_a_warning(on_s3, tmp_path, rule, text):
    settings = with_rules(on_s3, [rule], tmp_path)
    (finding,) = findings(settings)
    assert finding.status == "warning"
    assert text in finding.message
    assert "noncurrent" in finding.fix


@pytest.mark.usefixtures("on_s3")
def test_a_bucket_that_does_not_tell_its_rules_is_said(tmp_path):
    settings = config(tmp_path, table={"location": "s3://no-such-bucket-here/lake/clicks"})
    (finding,) = findings(settings)
    assert finding.status == "not_checked"
    assert "there is no bucket 'no-such-bucket-here': 404 NoSuchBucket" in finding.message
