"""Finds rules of a bucket of S3 that delete or archive current objects: they take files that a table still names.

The rules are those of S3's GetBucketLifecycleConfiguration. Its older form has a rule's prefix outside of the filter.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.writer.core.text import instant, plural
from headrace.writer.storage.bucket_locations import split_bucket_location
from headrace.writer.storage.requests.failures import RequestFailed
from headrace.writer.storage.s3 import S3Client, resolve_settings
from headrace.writer.storage.settings import S3Settings

# Classes from which an object must be restored before it can be read.
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}


class RulesUnknown(Exception):
    """The store does not tell its rules, or not to these credentials."""


def read_rules(bucket: str, settings: S3Settings) -> list[dict[str, Any]]:
    """Return the rules of a bucket, as boto3 has them. Raises RulesUnknown."""
    try:
        return S3Client(bucket, resolve_settings(settings)).lifecycle_rules()
    except RequestFailed as error:
        raise RulesUnknown(error.answer) from error


def describe_removals(rules: Sequence[Mapping[str, Any]], location: str) -> list[str]:
    """Return what each rule in force does to current objects of a location: `rule old deletes them after 30 days`.

    Objects of headrace carry no tags, so a rule for objects with tags does not meet them.
    """
    folder = f"{split_bucket_location(location).folder}/"
    return [
        f"rule {rule.get('ID') or 'without a name'} {action}"
        for rule in rules
        if rule.get("Status") == "Enabled" and _meets(rule, folder)
        for action in _actions(rule)
    ]


def _meets(rule: Mapping[str, Any], folder: str) -> bool:
    """Return whether a rule meets objects of a folder, or of folders in it."""
    conditions = rule.get("Filter", {})
    conditions = conditions.get("And", conditions)
    if conditions.get("Tag") or conditions.get("Tags"):
        return False
    prefix = conditions.get("Prefix") or rule.get("Prefix") or ""
    return folder.startswith(prefix) or prefix.startswith(folder)


def _actions(rule: Mapping[str, Any]) -> Iterator[str]:
    expiration = rule.get("Expiration", {})
    if "Days" in expiration or "Date" in expiration:
        yield f"deletes them {_moment(expiration)}"
    for transition in rule.get("Transitions", []):
        if transition.get("StorageClass") in _ARCHIVES:
            yield f"archives them {_moment(transition)}"


def _moment(action: Mapping[str, Any]) -> str:
    if "Days" in action:
        return f"after {plural(action['Days'], 'day')}"
    return f"from {instant(action['Date'])} on"
