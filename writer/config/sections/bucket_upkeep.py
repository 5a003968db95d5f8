"""Sections about buckets that exist: when they are sealed, what becomes of late rows, how they are compacted."""

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from headrace.writer.batch.lateness import LATE_POLICIES, LatePolicy, LateTier
from headrace.writer.batch.staging.sorting import Dedupe as Rule, TakenLimit
from headrace.writer.config.base import Strict
from headrace.writer.config.sections.table import Location
from headrace.writer.core.units import Duration, Slack


class LateRule(Strict):
    """What becomes of late rows up to some lateness."""

    within: Duration | None = Field(
        None, description="how far the watermark may be past the end of their bucket; none: all that is later"
    )
    to: LatePolicy = Field(
        description="what becomes of a row whose bucket is closed: reopen: it joins the bucket, which is sealed again; "
        "late_table: it goes to a table beside; dead_letter: to the dead letters. A word alone stands for one rule: "
        "`late: reopen`, the default"
    )


def _rules(late: Any) -> Any:
    if isinstance(late, str):
        return [{"to": late}]
    return late


def _in_order(late: list[LateRule]) -> list[LateRule]:
    bounds = [rule.within for rule in late]
    if not bounds or bounds[-1] is not None or None in bounds[:-1]:
        raise ValueError("each rule but the last has `within`, and the last has none: it takes all that is later")
    if any(a >= b for a, b in pairwise(bound for bound in bounds if bound is not None)):
        raise ValueError("`within` grows from rule to rule, since the first that fits counts")
    if twice := next((to for to, rules in Counter(rule.to for rule in late).items() if rules > 1), None):
        raise ValueError(f"two rules say {twice}; give each destination one")
    return late


def _or_word(schema: dict[str, Any]) -> None:
    """Let the JSON schema take a destination alone, too."""
    rules = {"type": schema.pop("type"), "items": schema.pop("items")}
    schema["anyOf"] = [{"type": "string", "enum": list(LATE_POLICIES)}, rules]


class Seal(Strict):
    """When a bucket of event time is complete, and what becomes of rows that come after.

    https://github.com/headrace/headrace/blob/main/docs/BUCKETS.md
    """

    enabled: bool = Field(True, description="close and seal buckets; without it none is, and no row is late")
    out_of_orderness: Slack = Field(
        timedelta(minutes=5), description="how far behind the newest of its partition an event may come, on time"
    )
    allowed_lateness: Slack = Field(
        timedelta(0), description="how long after its end, by the watermark, a bucket is left open"
    )
    idle_timeout: Duration = Field(
        timedelta(minutes=10), description="a partition without records for so long does not hold the watermark back"
    )
    after: Duration | None = Field(
        timedelta(hours=1),
        description="how long after its end a bucket is closed by the clock, if all that Kafka has is committed; null: "
        "never",
    )
    late: Annotated[list[LateRule], BeforeValidator(_rules), AfterValidator(_in_order)] = Field(
        default_factory=lambda: [LateRule(within=None, to="reopen")],
        json_schema_extra=_or_word,
        description="what becomes of a row whose bucket is closed, by how late it is; or one word for all",
    )
    late_table: Location | None = Field(
        None, description="location of the table of late rows; default: location of the table + '_late'"
    )
    reopen_after: Slack = Field(
        timedelta(minutes=10), description="how long a sealed bucket rests after a change before it is sealed again"
    )
    success_file: bool | None = Field(
        None, description="put `_SUCCESS` into the folder of a sealed bucket; default: for tables in Parquet format"
    )

    @property
    def tiers(self) -> tuple[LateTier, ...]:
        """What becomes of late rows, by how late they are; the last has no bound."""
        return tuple(LateTier(rule.within, rule.to) for rule in self.late)


class Dedupe(Strict):
    """Of rows with the same key in one bucket, or within a window, one stays."""

    key: list[str] = Field(
        min_length=1, description="columns that make rows the same; a row with a null among them is left as it is"
    )
    keep: Literal["first", "last"] = Field("first", description="which of them stays, by Kafka's time, then by offset")
    window: Duration | None = Field(
        None,
        description="also across buckets: a row goes if one that came before it stays in a bucket that is at most this "
        "far away, such as `24 h`; default: within one bucket only",
    )
    max_taken_ratio: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a bucket's rows that are taken before it is sealed; beyond it the bucket is blocked "
        "until `headrace compact --yes` takes them; 1: any",
    )
    min_taken_rows: int = Field(
        1000, ge=1, description="as long as fewer rows of a bucket would be taken, their share does not matter"
    )

    @model_validator(mode="after")
    def _first_stays(self) -> "Dedupe":
        if self.window is not None and self.keep == "last":
            raise ValueError(
                "dedupe with 'window' keeps the first row: with keep: last each repeat would take a row out of a "
                "bucket that is sealed. Leave keep out, or leave window out"
            )
        return self

    @property
    def rule(self) -> Rule:
        """What tasks get."""
        return Rule(tuple(self.key), self.keep)

    @property
    def limit(self) -> TakenLimit:
        """How many rows go without a person."""
        return TakenLimit(self.max_taken_ratio, self.min_taken_rows)


class Compact(Strict):
    """Files of a bucket that are merged, put in order, and freed of rows that came twice.

    https://github.com/headrace/headrace/blob/main/docs/COMPACTION.md
    """

    at_seal: bool | None = Field(
        None, description="rewrite a bucket's files before it is sealed; default: except for tables in Parquet format"
    )
    max_open_files: int | None = Field(
        100, ge=2, description="an open bucket with more small files is merged before it is closed; null: none is"
    )
    sort_by: list[str] = Field(
        default_factory=list, description="columns that the rows of a closed bucket are put in order by"
    )
    dedupe: Dedupe | None = Field(None, description="take rows out that came more than once, when a bucket is sealed")
    share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="most of the driver's task slots, or of their processor time, that rewriting "
        "takes, over time; the rest is the stream's",
    )
