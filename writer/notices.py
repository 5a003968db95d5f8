"""What people are told at once, and the section of the configuration that says who: each event with its words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, get_args
from uuid import uuid4

from pydantic import Field

from writer.strict import Strict
from writer.units import Duration

Kind = Literal[
    "records_missed", "holes_found", "gap_opened", "topic_created_again", "walked_back", "latest_taken",
    "pipeline_given_up", "lease_lost",
]  # fmt: skip
Severity = Literal["page", "warn"]
_SHOWN = 5  # ranges in a text; the fields have all
KINDS: tuple[Kind, ...] = get_args(Kind)


class Notify(Strict):
    """Who is told at once when records are lost, skipped or in doubt, or a pipeline was given up."""

    url_env: str | None = Field(
        None, min_length=1,
        description="name of the environment variable with the URL to POST to (a Slack-compatible webhook, or any "
        "server); default: nobody is told",
    )  # fmt: skip
    kinds: tuple[Kind, ...] = Field(
        KINDS, description="which events are told; leave `holes_found` out for compacted and transactional topics"
    )
    timeout: Duration = Field(timedelta(seconds=10), description="how long an answer may take")
    patience: Duration = Field(timedelta(hours=1), description="how long a message that fails is tried again")


@dataclass(frozen=True)
class Event:
    """Something to be told. `text` is for people, `fields` for machines: JSON values."""

    kind: Kind
    severity: Severity
    pipeline: str
    text: str
    at: datetime
    fields: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid4().hex)  # the same when it is sent again


def gap_opened(pipeline: str, gap: Mapping[str, Any], version: int, at: datetime) -> Event:
    """Tell of a gap; `gap`: what its entry says of itself."""
    offsets = sum(r["end"] - r["start"] for r in gap["ranges"])
    named = ", ".join(f"{r['topic']}/{r['partition']} [{r['start']}, {r['end']})" for r in gap["ranges"][:_SHOWN])
    more = f" and {len(gap['ranges']) - _SHOWN} more" if len(gap["ranges"]) > _SHOWN else ""
    text = f"{offsets:,} offsets were skipped ({gap['cause']}): {named}{more}. Ticket {gap['id']}, version {version}."
    fields = {"gap": gap["id"], "cause": gap["cause"], "version": version, "ranges": list(gap["ranges"])}
    return Event("gap_opened", "page", pipeline, text, at, fields)


def topic_created_again(pipeline: str, topic: str, before: str, found: str, at: datetime) -> Event:
    """Tell of a topic that is another one under its old name; `before`, `found`: its ids."""
    text = f"topic {topic} was deleted and created again (id {found}, before {before}); it is read from its beginning."
    return Event("topic_created_again", "page", pipeline, text, at, {"topic": topic, "before": before, "id": found})


def holes_found(pipeline: str, offsets: int, version: int, at: datetime) -> Event:
    """Tell of committed offsets at which the log holds no record."""
    text = (
        f"{offsets:,} offsets of version {version} held no record: compaction, or marks of transactions. Where the "
        "topic has neither, records are missing."
    )
    return Event("holes_found", "warn", pipeline, text, at, {"offsets": offsets, "version": version})


def records_missed(pipeline: str, why: str, at: datetime) -> Event:
    """Tell that the broker holds records which a batch did not read; nothing of it was committed."""
    return Event("records_missed", "page", pipeline, why, at)
