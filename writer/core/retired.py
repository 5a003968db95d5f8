"""Retired names of configuration keys, commands, options and environment variables, with their replacements.

Using one fails with a sentence that names its heir. docs/UPGRADES.md lists them, with retired metrics and events.
"""

from collections.abc import Iterator, Mapping
from typing import Any

COMMANDS = {
    "autoscale": "autoscaler",
    "autoscaler simulate": "simulate",
    "delete": "delete-rows",
    "plan": "size",
    "recover": "supervisor",
}

OPTIONS = {"gaps close --lost": "gaps close --yes", "vacuum --delete": "vacuum --yes"}

VARIABLES = {"HEADRACE_PLACE": "HEADRACE_CONFIG_OVERLAY"}

# Parameters of the autoscaler's policy: keys of `autoscaler.policy`, and names of `--set`.
POLICY = {
    "u_target": "utilization_target",
    "u_max": "utilization_max",
    "u_min": "utilization_min",
    "catch_up_s": "catch_up_duration",
    "tick_s": "interval",
    "slo_s": "lag_slo",
    "lately_s": "short_window",
    **{
        f"{name}_s": name
        for name in (
            "window", "facts_age_max", "start", "start_max", "stable", "stable_max", "down", "after_up", "regret",
            "block", "history",
        )
    },
}  # fmt: skip

# Keys by their path; `*` is the name of a pipeline. The heir stands in the same section.
KEYS = {
    "autoscale": "autoscaler",
    "notify": "notifications",
    "notify.patience": "retry_timeout",
    "notifications.patience": "retry_timeout",
    "s3.patience": "retry_timeout",
    "http.records": "expose_records",
    "kafka.security.ca": "ca_file",
    "kafka.security.client": "client_cert_file",
    "kafka.security.check_host": "verify_hostname",
    "registry.ca": "ca_file",
    "recovery.copies": "checkpoint_backups",
    "recovery.copies_interval": "checkpoint_backups_interval",
    "recovery.copies_max_age": "checkpoint_backups_max_age",
    "supervisor.latest": "allow_skip_to_latest",
    "pipelines.*.on_new_incarnation": "on_topic_recreated",
    "pipelines.*.mirror_offsets": "commit_offsets_to_group",
    "pipelines.*.table.orphan_age": "orphan_retention",
    "pipelines.*.schemas.unknown_grace": "unknown_id_timeout",
    "pipelines.*.limits.poison_share": "failed_ratio_max",
    "pipelines.*.limits.poison_records_min": "failed_records_min",
    **{f"{section}.policy.{old}": new for section in ("autoscale", "autoscaler") for old, new in POLICY.items()},
}

VALUES = {
    ("pipelines.*.schemas.widen", "park"): "reject",
    ("notifications.kinds", "holes_found"): "missing_offsets",
    ("notifications.kinds", "latest_taken"): "skipped_to_latest",
    ("notifications.kinds", "pipeline_given_up"): "pipeline_halted",
    ("notifications.kinds", "topic_created_again"): "topic_recreated",
    ("notifications.kinds", "walked_back"): "offsets_rebuilt",
}


def in_config(raw: Mapping[str, Any]) -> list[str]:
    """Return a line for each retired key or value of a configuration, such as "s3.patience: is now retry_timeout"."""
    sentences = [f"{at}: is now {new}" for old, new in KEYS.items() for at, _ in _values(raw, old)]
    for (path, old), new in VALUES.items():
        sentences += [
            f"{at}: {old!r} is now {new!r}"
            for at, value in _values(raw, path)
            if old in (value if isinstance(value, list) else [value])
        ]
    return sentences


def _values(raw: Any, path: str, at: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values in a mapping that match a path with `*`."""
    head, _, rest = path.partition(".")
    if not isinstance(raw, Mapping):
        return
    for key in raw if head == "*" else [head] if head in raw else []:
        if rest:
            yield from _values(raw[key], rest, (*at, str(key)))
        else:
            yield ".".join((*at, str(key))), raw[key]
