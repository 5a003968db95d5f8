"""Creates the lease of a pipeline: beside its checkpoints, or in Kubernetes."""

import os
from typing import assert_never

from recovery.lease.kubernetes_api import in_pod
from recovery.lease.kubernetes_lease import KubernetesLeases, LeaseContent, lease_name
from recovery.lease.lease import Leases, StoreLeases
from writer.config.pipelines import Config
from writer.storage.base import Store


def leases_of(config: Config, pipeline: str, beside: Store) -> Leases:
    """Return the lease of a pipeline. `beside`: of what lies beside its checkpoints. Raises ConfigError."""
    settings = config.supervisor
    match settings.lease:
        case "store":
            return StoreLeases(beside)
        case "kubernetes":
            about = LeaseContent(lease_name(settings.lease_prefix, pipeline), pipeline, settings.lease_expiry)
            return KubernetesLeases(in_pod(os.environ), about)
        case _:
            assert_never(settings.lease)


def moved_from(config: Config, beside: Store) -> int:
    """Return the epoch that was reached beside the checkpoints before leases were kept in Kubernetes. Raises OSError.

    The way back needs no such look: what was taken in Kubernetes and used, the table knows.
    """
    before = StoreLeases(beside).look() if config.supervisor.lease == "kubernetes" else None
    return 0 if before is None else before.epoch
