"""Creates the lease of a pipeline: beside its checkpoints, or in Kubernetes."""

import os
from typing import assert_never

from writer.config.pipelines import Config
from writer.lease.kubernetes_api import in_pod
from writer.lease.kubernetes_lease import KubernetesLeases, LeaseContent, lease_name
from writer.lease.lease import Leases, StoreLeases
from writer.storage.base import Store


def leases_of(config: Config, pipeline: str, store: Store) -> Leases:
    """Return the lease of a pipeline. `store`: of what lies beside its checkpoints. Raises ConfigError."""
    settings = config.supervisor
    match settings.lease:
        case "store":
            return StoreLeases(store)
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
