"""`headrace supervisor run`: creates and runs a supervisor."""

import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta

from recovery.lease.factory import leases_of, moved_from
from recovery.lease.holder import LeaseHolder
from recovery.supervisor import frontier_check
from recovery.supervisor.driver_process import adopt_orphans, place
from recovery.supervisor.endpoints import PipelineStatus, answers
from recovery.supervisor.pipeline_state import SupervisedPipeline
from recovery.supervisor.recovery_actions import actions
from recovery.supervisor.settings import impatient, store
from recovery.supervisor.supervisor import Reloads, Supervisor
from writer.clients import notifications
from writer.config.loader import ReloadableConfig
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.signals import on_signals, process
from writer.web.http_server import answering

_LAST_WORDS = timedelta(seconds=5)


def supervise(file: ReloadableConfig, command: Sequence[str]) -> int:
    """Take the leases, and keep a driver going. Returns the exit code. `command`: of the driver, if not its own."""
    config, stop = file.config, threading.Event()
    on_signals(stop)
    adopt_orphans()
    notifier = notifications.open_notifier(config.notifications)
    leases = {name: leases_of(config, name, store(config, name)) for name in file.names}
    held = LeaseHolder(
        leases, holder(), expires_after=config.supervisor.lease_expiry, least=lambda name: _least(file.config, name)
    )

    def admit(name: str) -> SupervisedPipeline:
        held.add(name, leases_of(config, name, store(config, name)))
        return SupervisedPipeline(name)

    supervised_pipelines = {name: SupervisedPipeline(name) for name in file.names}
    with ExitStack() as after:
        after.callback(notifier.close, _LAST_WORDS)
        folder = after.enter_context(place())
        supervisor = Supervisor(
            config, supervised_pipelines, lambda: command or _writer(file), folder=folder, held=held,
            notifier=notifier, actions=actions(config), stop=stop, reloads=Reloads(file, admit, actions),
        )  # fmt: skip
        supervisor_status = PipelineStatus(
            lambda: supervisor.supervised_pipelines,
            held,
            lambda: supervisor.driving,
            lambda: {**file.document(), "process": process(os.getpid())},
        )
        about = {"enabled": True, "host": config.supervisor.host, "port": config.supervisor.port}
        http = config.http.model_copy(update=about)  # with the driver's certificate
        url = after.enter_context(answering(http, answers(supervisor_status), section="supervisor"))
        logging.event("supervisor_listening", url=url)
        after.callback(held.close)
        return supervisor.run()


def holder() -> str:
    """Name this supervisor, for those that wait for it."""
    return f"{socket.gethostname()}/{os.getpid()}"


def _least(config: Config, name: str) -> int:
    """Return the highest epoch that a lease of this pipeline may have had. Raises OSError."""
    asked = impatient(config)
    return max(frontier_check.lease(asked, name), moved_from(asked, store(asked, name)))


def _writer(file: ReloadableConfig) -> list[str]:
    """Return the command of a driver that runs the same pipelines, also those that the file does not have now."""
    only = [f"--pipeline={name}" for name in file.only or ()]
    return [sys.executable, "-m", "writer.cli", "run", str(file.path), *only]
