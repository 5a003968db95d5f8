"""Creates the leases of pipelines, beside their checkpoints or in Kubernetes, and their holder."""

import os
import socket
from collections.abc import Callable, Iterable
from typing import assert_never

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.lease.kubernetes_api import in_pod
from headrace.writer.lease.kubernetes_lease import KubernetesLeases, LeaseContent, lease_name
from headrace.writer.lease.lease import Leases, StoreLeases
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import store_at
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.foreign_writes import CommitFailed


def open_holder(config: Config, pipelines: Iterable[str], current_config: Callable[[], Config]) -> LeaseHolder:
    """Return the holder of these pipelines' leases, by this process. Raises ConfigError.

    `current_config` returns the configuration in force, in which a pipeline's table is looked up.
    """
    return LeaseHolder(
        {name: leases_of(config, name) for name in pipelines},
        this_holder(),
        expires_after=config.supervisor.lease_expiry,
        epoch_floor=lambda name: highest_epoch(current_config(), name),
    )


def this_holder() -> str:
    """Name this process, for those that wait for it."""
    return f"{socket.gethostname()}/{os.getpid()}"


def pipeline_store(config: Config, pipeline: str) -> Store:
    """Return the store of what lies beside a pipeline's checkpoints."""
    return store_at(f"{config.checkpoints.rstrip('/')}/{pipeline}", config.stores)


def leases_of(config: Config, pipeline: str) -> Leases:
    """Return the lease of a pipeline. Raises ConfigError."""
    settings = config.supervisor
    match settings.lease:
        case "store":
            return StoreLeases(pipeline_store(config, pipeline))
        case "kubernetes":
            name = lease_name(settings.lease_prefix, pipeline)
            return KubernetesLeases(in_pod(os.environ), LeaseContent(name, pipeline, settings.lease_expiry))
        case _:
            assert_never(settings.lease)


def replaced_store_epoch(config: Config, store: Store) -> int:
    """Return the epoch that was reached beside the checkpoints before leases were kept in Kubernetes. Raises OSError.

    The way back needs no such look: what was taken in Kubernetes and used, the table knows.
    """
    if config.supervisor.lease != "kubernetes":
        return 0
    record = StoreLeases(store).look()
    return 0 if record is None else record.epoch


def highest_epoch(config: Config, pipeline: str) -> int:
    """Return the highest epoch that a lease of this pipeline may have had. Raises OSError."""
    return max(newest_lease(config, pipeline), replaced_store_epoch(config, pipeline_store(config, pipeline)))


def newest_lease(config: Config, pipeline: str) -> int:
    """Return the newest lease that the table knows: leases that were removed go on above it. Raises OSError."""
    try:
        table = main_table(pipeline, config)
        if not table.exists():
            return 0
        return table.snapshot().lease
    except CommitFailed as error:
        raise OSError(str(error)) from error
    except (ValueError, KeyError, TypeError, HeadraceError):
        # A table that cannot be read refuses a start by itself.
        return 0
