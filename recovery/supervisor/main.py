"""`headrace supervisor run`: creates and runs a supervisor."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta

from headrace.recovery.supervisor.driver_process import adopt_orphans, channel_folder
from headrace.recovery.supervisor.endpoints import SupervisorStatus, supervisor_endpoints
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.recovery.supervisor.recovery_actions import actions
from headrace.recovery.supervisor.settings import with_short_timeouts
from headrace.recovery.supervisor.supervisor import Reloads, Supervisor
from headrace.writer.clients import notifications
from headrace.writer.config.loader import ReloadableConfig
from headrace.writer.core import logging
from headrace.writer.core.signals import StopEvents, describe_process, on_signals
from headrace.writer.lease.factory import leases_of, open_holder
from headrace.writer.web.http_server import answering

_CLOSE_NOTIFIER_WITHIN = timedelta(seconds=5)


def supervise(file: ReloadableConfig, command: Sequence[str]) -> int:
    """Take the leases, and keep a driver going. Returns the exit code. `command`: of the driver, if not its own."""
    config = file.config
    events = StopEvents()
    on_signals(events)
    adopt_orphans()
    notifier = notifications.open_notifier(config.notifications)
    lease_holder = open_holder(config, file.names, lambda: with_short_timeouts(file.config))

    def add_pipeline(name: str) -> SupervisedPipeline:
        lease_holder.add(name, leases_of(config, name))
        return SupervisedPipeline(name)

    with ExitStack() as stack:
        stack.callback(notifier.close, _CLOSE_NOTIFIER_WITHIN)
        supervisor = Supervisor(
            config,
            {name: SupervisedPipeline(name) for name in file.names},
            lambda: command or _driver_command(file),
            folder=stack.enter_context(channel_folder()),
            lease_holder=lease_holder,
            notifier=notifier,
            actions=actions(config),
            events=events,
            reloads=Reloads(file, add_pipeline, actions),
        )
        supervisor_status = SupervisorStatus(
            pipelines=lambda: supervisor.supervised_pipelines,
            lease_holder=lease_holder,
            driving=lambda: supervisor.driving,
            config=lambda: {**file.document(), "process": describe_process(os.getpid())},
        )
        # The supervisor has the driver's certificate.
        address = {"enabled": True, "host": config.supervisor.host, "port": config.supervisor.port}
        http = config.http.model_copy(update=address)
        url = stack.enter_context(answering(http, supervisor_endpoints(supervisor_status), section="supervisor"))
        logging.event("supervisor_listening", url=url)
        stack.callback(lease_holder.close)
        return supervisor.run()


def _driver_command(file: ReloadableConfig) -> list[str]:
    """Return the command of a driver that runs the same pipelines, also those that the file does not have now."""
    options = [f"--pipeline={name}" for name in file.only or ()]
    return [sys.executable, "-m", "headrace.writer.cli", "run", str(file.path), *options]
