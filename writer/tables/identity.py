"""Whose a table is, and how its rows are bucketed: what each start looks at before it writes anything."""

from collections.abc import Sequence

from writer.errors import ConfigError
from writer.tables.log import State
from writer.tables.vintage import check_format

OWNER = "headrace/"  # with the pipeline's name: the table's name


def check_identity(state: State, pipeline: str, location: str, bucket_columns: Sequence[str], layout: str) -> None:
    """Raise ConfigError when the table is another pipeline's, or is bucketed in another way."""
    metadata = state.metadata
    owner, known = metadata.get("name") or "", metadata.get("description") or ""
    if owner != OWNER + pipeline:
        made = owner.startswith(OWNER)
        whose = f"belongs to pipeline {owner.removeprefix(OWNER)!r}" if made else "was not made by headrace"
        adopt = "" if made else "; `headrace table adopt` says whether it can be adopted"
        raise ConfigError(f"the table at {location} {whose}; pipeline {pipeline!r} needs a location of its own{adopt}")
    check_format(state.transactions, pipeline, location)
    columns = list(metadata["partitionColumns"])
    if columns != list(bucket_columns) or known != layout:
        raise ConfigError(
            f"the table at {location} is bucketed by {known or ', '.join(columns)}, the configuration says "
            f"{layout or ', '.join(bucket_columns)}; keep 'bucket' as it was, or choose a new location"
        )
