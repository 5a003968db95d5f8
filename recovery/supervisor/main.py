"""`headrace supervisor run`: creates and runs a supervisor."""

import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from recovery.escalation.state import Memory, forgiven, read
from recovery.lease.factory import leases_of, moved_from
from recovery.lease.holder import LeaseHolder
from recovery.supervisor import frontier_check
from recovery.supervisor.driver_process import adopt_orphans, place
from recovery.supervisor.endpoints import PipelineStatus, answers
from recovery.supervisor.pipeline_state import SupervisedPipeline
from recovery.supervisor.recovery_actions import actions
from recovery.supervisor.supervisor import Supervisor, impatient, store
from writer.clients import notifications
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.signals import on_signals
from writer.web.http_server import answering

_LAST_WORDS = timedelta(seconds=5)


def supervise(config: Config, path: Path, names: Sequence[str], command: Sequence[str]) -> int:
    """Hold the leases, then keep a driver going. Returns the exit code."""
    stop = threading.Event()
    on_signals(stop)
    adopt_orphans()
    notifier = notifications.opened(config.notifications)
    leases = {name: leases_of(config, name, store(config, name)) for name in names}
    held = LeaseHolder(
        leases, holder(), expires_after=config.supervisor.lease_expiry, least=lambda name: _least(config, name)
    )
    supervised_pipelines = {name: SupervisedPipeline(name) for name in names}
    with ExitStack() as after:
        after.callback(notifier.close, _LAST_WORDS)
        folder = after.enter_context(place())
        supervisor = Supervisor(
            config, supervised_pipelines, command or _writer(path, names, config), folder=folder, held=held,
            notifier=notifier, actions=actions(config), stop=stop,
        )  # fmt: skip
        supervisor_status = PipelineStatus(supervised_pipelines, held, lambda: supervisor.driving)
        about = {"enabled": True, "host": config.supervisor.host, "port": config.supervisor.port}
        http = config.http.model_copy(update=about)  # with the driver's certificate
        url = after.enter_context(answering(http, answers(supervisor_status), section="supervisor"))
        logging.event("supervisor_listening", url=url)
        after.callback(held.close)
        if not held.take(stop.wait):
            return 0
        for supervised in supervised_pipelines.values():
            supervised.memory = _remembered(config, supervised.name)
        return supervisor.run()


def holder() -> str:
    """Name this supervisor, for those that wait for it."""
    return f"{socket.gethostname()}/{os.getpid()}"


def _least(config: Config, name: str) -> int:
    """Return the highest epoch that a lease of this pipeline may have had. Raises OSError."""
    asked = impatient(config)
    return max(frontier_check.lease(asked, name), moved_from(asked, store(asked, name)))


def _writer(path: Path, names: Sequence[str], config: Config) -> list[str]:
    """Return the command of a driver that runs these pipelines."""
    only = [] if set(names) == set(config.pipelines) else [f"--pipeline={name}" for name in names]
    return [sys.executable, "-m", "writer.cli", "run", str(path), *only]


def _remembered(config: Config, name: str) -> Memory:
    try:
        return forgiven(read(store(config, name)))
    except OSError as error:
        logging.warning("supervisor_state_unreadable", pipeline=name, error=str(error))
        return Memory()
