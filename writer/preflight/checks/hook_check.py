"""Asks the servers of hooks whether deliveries can work. None of them keeps the writer from its start."""

from collections.abc import Iterator
from datetime import timedelta

from headrace.writer.config.pipelines import Config
from headrace.writer.core.http import RequestFailed
from headrace.writer.hooks.base import HookFailed
from headrace.writer.hooks.dispatcher import build_hook
from headrace.writer.preflight.checks.finding import Finding, doubtful, good, not_checked

# A person waits, so a server has less time than a delivery gives it.
_TIMEOUT_MAX = timedelta(seconds=10)


def check_hooks(name: str, config: Config, *, offline: bool) -> Iterator[Finding]:
    """Yield whether each hook of a pipeline can deliver. Those of a route's tables are not asked."""
    pipeline = config.pipelines[name]
    if pipeline.route is not None:
        return
    for settings in pipeline.hooks:
        if offline:
            yield not_checked(f"hook {settings.name}", "--offline")
            continue
        timeout = min(settings.timeout, _TIMEOUT_MAX)
        hook = build_hook(settings.model_copy(update={"timeout": timeout}), name)
        check = f"hook {hook.name}"
        try:
            was_asked = hook.check()
        except (HookFailed, RequestFailed) as error:
            yield doubtful(check, str(error), "Deliveries wait until it can be delivered to.")
            continue
        if was_asked:
            yield good(check, hook.target)
        else:
            yield not_checked(check, f"{hook.target} takes deliveries alone")
