"""The section `compact` of a pipeline: which files of a bucket are written anew, when, and in what shape."""

from typing import Literal

from pydantic import Field

from writer.batch.sorting import Dedupe as Rule
from writer.config.base import Strict


class Dedupe(Strict):
    """Of rows with the same key in one bucket, one stays."""

    key: list[str] = Field(
        min_length=1, description="columns that make rows the same; a row with a null among them is left as it is"
    )
    keep: Literal["first", "last"] = Field("first", description="which of them stays, by Kafka's time, then by offset")

    @property
    def rule(self) -> Rule:
        """What the tasks are told."""
        return Rule(tuple(self.key), self.keep)


class Compact(Strict):
    """Files of a bucket that are merged, put in order, and freed of rows that came twice (docs/COMPACTION.md)."""

    at_seal: bool | None = Field(
        None, description="rewrite a bucket's files before it is sealed; default: for tables in Delta format"
    )
    open_files_max: int | None = Field(
        100, ge=2, description="an open bucket with more small files is merged before it is closed; null: none is"
    )
    sort_by: list[str] = Field(
        default_factory=list, description="columns that the rows of a closed bucket are put in order by"
    )
    dedupe: Dedupe | None = Field(None, description="take rows out that came more than once, when a bucket is sealed")
    share: float = Field(
        0.1, gt=0, le=1, description="most of the driver's task slots, or of their processor time, that rewriting "
        "takes, over time; the rest is the stream's",
    )  # fmt: skip
