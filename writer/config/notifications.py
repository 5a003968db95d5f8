"""The section `notify`: which events are posted, and where."""

from datetime import timedelta
from typing import Literal, get_args

from pydantic import Field

from writer.config.base import Strict
from writer.core.units import Duration

Kind = Literal[
    "records_missed", "missing_offsets", "gap_opened", "topic_recreated", "offsets_rebuilt", "skipped_to_latest",
    "pipeline_halted", "lease_lost",
]  # fmt: skip

KINDS: tuple[Kind, ...] = get_args(Kind)


class Notifications(Strict):
    """Who is told at once when records are lost, skipped or in doubt, or a pipeline was given up."""

    url_env: str | None = Field(
        None, min_length=1,
        description="name of the environment variable with the URL to POST to (a Slack-compatible webhook, or any "
        "server); default: nobody is told",
    )  # fmt: skip
    kinds: tuple[Kind, ...] = Field(
        KINDS, description="which events are told; leave `missing_offsets` out for compacted and transactional topics"
    )
    timeout: Duration = Field(timedelta(seconds=10), description="how long an answer may take")
    retry_timeout: Duration = Field(timedelta(hours=1), description="how long a message that fails is tried again")
