"""Sends what an audit found to the hooks that take it: those of Dagster, as an asset check."""

from headrace.writer.audit.audit import Audit
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.hooks import Dagster
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.http import RequestFailed
from headrace.writer.hooks.base import HookFailed
from headrace.writer.hooks.dagster import DagsterHook
from headrace.writer.output.table_choice import choose_tables


def send_audit(config: Config, pipeline: str, audit: Audit, *, deep: bool) -> None:
    """Send the audit of a pipeline to each hook of Dagster of its tables. `deep`: it read every file.

    Raises ConfigError where there is no such hook, HeadraceError where one failed.
    """
    hooks: list[DagsterHook] = []
    for table in choose_tables(config, [pipeline], None):
        settings = table.config.pipelines[table.pipeline].hooks
        hooks += [DagsterHook(section) for section in settings if isinstance(section, Dagster)]
    if not hooks:
        raise ConfigError(
            f"pipeline {pipeline!r} has no hook of type dagster, which takes the result of an audit; add one, or leave "
            "--report out"
        )
    reconciliation = audit.reconciliation
    metadata = {
        "pipeline": pipeline,
        "from_version": reconciliation.first,
        "to_version": reconciliation.last,
        "deep": deep,
        "records": reconciliation.total("read"),
        "rows": reconciliation.total("rows"),
        "problems": len(audit.problems),
    }
    errors = []
    for hook in hooks:
        try:
            hook.report_audit(adds_up=audit.adds_up, metadata=metadata)
        except (HookFailed, RequestFailed) as error:
            errors.append(f"hook {hook.name} of {pipeline}: {error}")
    if errors:
        raise HeadraceError("; ".join(errors))
