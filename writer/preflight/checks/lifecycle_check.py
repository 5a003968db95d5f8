"""Checks whether a bucket's own rules would take files that a table still names."""

from collections.abc import Iterator
from itertools import groupby

from headrace.writer.config.pipelines import Config
from headrace.writer.preflight.checks import host_checks
from headrace.writer.preflight.checks.finding import Finding, doubtful, good, not_checked
from headrace.writer.storage.bucket_locations import split_bucket_location
from headrace.writer.storage.lifecycle_rules import RulesUnknown, describe_removals, read_rules
from headrace.writer.storage.locations import on_s3

_FIX = (
    "Limit the rule to noncurrent versions and incomplete uploads, or to other folders; `retention` removes old "
    "buckets, from the table first."
)


def check_lifecycle(
    name: str, config: Config, probed: host_checks.ProbedLocations, *, offline: bool
) -> Iterator[Finding]:
    """Yield findings for each bucket of S3 that a pipeline writes to. Other stores tell administrators alone."""
    locations = sorted(
        {
            location
            for location in config.pipelines[name].locations
            if on_s3(location) and not probed.is_unusable(location)
        }
    )
    for bucket, in_bucket in groupby(locations, key=lambda location: split_bucket_location(location).bucket):
        if offline:
            yield not_checked("lifecycle", "--offline")
        else:
            yield from _check_bucket(bucket, list(in_bucket), config)


def _check_bucket(bucket: str, locations: list[str], config: Config) -> Iterator[Finding]:
    """Yield one finding for each rule that removes objects, else one for the bucket."""
    try:
        rules = read_rules(bucket, config.stores.s3)
    except RulesUnknown as error:
        yield not_checked("lifecycle", f"bucket {bucket} does not tell its rules: {error}")
        return
    removed_from = dict[str, list[str]]()
    for location in locations:
        for removal in describe_removals(rules, location):
            removed_from.setdefault(removal, []).append(location)
    for removal, locations_met in removed_from.items():
        yield doubtful(
            "lifecycle", f"objects of {', '.join(locations_met)}: {removal}, also those that tables name", _FIX
        )
    if not removed_from:
        yield good("lifecycle", f"no rule of bucket {bucket} deletes or archives current objects of this pipeline")
