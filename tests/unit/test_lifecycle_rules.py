"""Rules of a bucket that archive current objects, in both forms that S3 has had."""

import pytest

from headrace.writer.storage.lifecycle_rules import describe_removals

COLD = {"ID": "cold", "Status": "Enabled", "Filter": {"Prefix": "lake/"}}


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_objects_in_an_archive_cannot_be_read(storage_class):
    rule = {**COLD, "Transitions": [{"Days": 9, "StorageClass": storage_class}]}
    assert describe_removals([rule], "s3://bucket/lake/clicks") == ["rule cold archives them after 9 days"]
    assert describe_removals([rule], "s3://bucket/other/clicks") == []


@pytest.mark.parametrize("storage_class", ["STANDARD_IA", "INTELLIGENT_TIERING", "GLACIER_IR"])
def test_objects_in_a_cheaper_class_are_read_as_before(storage_class):
    rule = {**COLD, "Transitions": [{"Days": 9, "StorageClass": storage_class}]}
    assert describe_removals([rule], "s3://bucket/lake/clicks") == []


def test_the_older_form_has_the_prefix_outside_of_the_filter():
    rule = {"Status": "Enabled", "Prefix": "lake/", "Expiration": {"Days": 30}}
    assert describe_removals([rule], "s3://bucket/lake/clicks") == ["rule without a name deletes them after 30 days"]
    assert describe_removals([rule], "s3://bucket/other/clicks") == []
