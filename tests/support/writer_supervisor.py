"""A supervisor of `tests.support.supervised_writer`, made as `headrace supervisor run` does; it asks no Kafka.

python -m tests.support.writer_supervisor CONFIG NAME COMMAND...: of pipeline `clicks`. Prints its exit code.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from recovery.supervisor.driver_process import channel_folder
from recovery.supervisor.pipeline_state import SupervisedPipeline
from recovery.supervisor.recovery_actions import actions
from recovery.supervisor.supervisor import Supervisor
from writer.clients import notifications
from writer.config.loader import load
from writer.core import logging
from writer.core.signals import StopEvents
from writer.lease.factory import leases_of
from writer.lease.holder import LeaseHolder


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
