"""A supervisor of `tests.support.supervised_writer`, made as `headrace supervisor run` does; it asks no Kafka.

python -m tests.support.writer_supervisor CONFIG NAME COMMAND...: of pipeline `clicks`. Prints its exit code.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.recovery.supervisor.driver_process import channel_folder
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.recovery.supervisor.recovery_actions import actions
from headrace.recovery.supervisor.supervisor import Supervisor
from headrace.writer.clients import notifications
from headrace.writer.config.loader import load
from headrace.writer.core import logging
from headrace.writer.core.signals import StopEvents
from headrace.writer.lease.factory import leases_of
from headrace.writer.lease.holder import LeaseHolder


def supervise(config_file: Path, name: str, command: Sequence[str]) -> int:
    """Keep the driver going until its log is carried. Returns the exit code."""
    logging.set_up()
    config = load(config_file)
    leases = {"clicks": leases_of(config, "clicks")}
    lease_holder = LeaseHolder(leases, name, expires_after=config.supervisor.lease_expiry)
    with channel_folder() as folder:
        try:
            return Supervisor(
                config,
                {"clicks": SupervisedPipeline("clicks")},
                lambda: command,
                folder=folder,
                lease_holder=lease_holder,
                notifier=notifications.open_notifier(config.notifications),
                actions=actions(config),
                events=StopEvents(),
                check_before_start=lambda *_: None,
            ).run()
        finally:
            lease_holder.close()


if __name__ == "__main__":
    print("exit code", supervise(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
