"""The parameters of the autoscaler, each with its unit, its default, and the reason."""

from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from cronsim import CronSim, CronSimError

from headrace.bucketers.zone_data import clock_of
from headrace.writer.config.base import did_you_mean
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.units import duration


@lru_cache(maxsize=4096)
def _matches(expression: str, minute: datetime) -> bool:
    """Return whether a minute is one of the expression's: the next after the one before it."""
    try:
        return next(CronSim(expression, minute - timedelta(minutes=1)), None) == minute
    except CronSimError as error:
        raise ConfigError(
            f"excluded {expression!r} is no cron expression of five fields, such as `* 9-17 * * MON-FRI`: {error}"
        ) from error


def matching_expression(expressions: Iterable[str], zone: str, now: datetime) -> str | None:
    """Return the first cron expression that holds at this instant. Raises ConfigError for one that cannot be read."""
    # A wall clock without its zone neither repeats nor skips a minute.
    minute = now.astimezone(clock_of(zone)).replace(second=0, microsecond=0, tzinfo=None)
    return next((expression for expression in expressions if _matches(expression, minute)), None)


def _parameter(default: Any, unit: str, why: str) -> Any:
    """Return a field with its unit and its reason, which docs/AUTOSCALING.md shows."""
    return field(default=default, metadata={"unit": unit, "why": why})


@dataclass(frozen=True)
class Policy:
    """Parameters of a decision. Raises ConfigError for those that contradict each other."""

    utilization_target: float = _parameter(
        0.80, "share", "share of the capacity that is used after a change; the rest carries bursts"
    )
    max_utilization: float = _parameter(
        0.95, "share", "above it executors are added; less is noise, or carried already"
    )
    min_utilization: float = _parameter(
        0.65, "share", "below it executors are removed; between it and max_utilization nothing changes"
    )
    catch_up_duration_s: float = _parameter(
        900.0, "s", "time in which a backlog is worked off: half of it costs 3 % more, twice saves 1 %"
    )
    headroom_share: float = _parameter(
        0.25, "share", "share of the retention headroom within which a backlog is worked off at the latest"
    )
    lag_slo_s: float = _parameter(
        300.0, "s", "acceptable lag beyond max_delay; no executor is removed while the lag is larger"
    )
    interval_s: float = _parameter(15.0, "s", "time between two decisions")
    window_s: float = _parameter(600.0, "s", "rates are means over this time: ten triggers of a minute")
    window_batches: float = _parameter(
        4.0, "batches", "rates are means over at least so many batches, if batches are rare"
    )
    short_window_s: float = _parameter(
        120.0, "s", "a rise of arrivals counts after this time, a fall only after the window"
    )
    max_facts_age_s: float = _parameter(60.0, "s", "older facts change nothing: four ticks were missed")
    min_batches: int = _parameter(
        2, "batches", "batches that must finish in the window before a rate is known: one is chance"
    )
    start_s: float = _parameter(60.0, "s", "time that an executor takes to start, until a start was measured")
    max_start_s: float = _parameter(
        900.0, "s", "longest time that an executor takes to start; one that takes longer waits for quota"
    )
    stable_s: float = _parameter(
        60.0, "s", "no executor is added so soon after others started: the lag must show what they carry"
    )
    stable_batches: int = _parameter(
        1, "batches", "batches that must run on all new executors before more are requested"
    )
    max_stable_s: float = _parameter(
        150.0, "s", "after this time more are requested without such batches: they may be rare, or stuck"
    )
    down_s: float = _parameter(
        900.0,
        "s",
        "executors are removed if they were too many for all this time; the most that were wanted in it stay",
    )
    down_batches: float = _parameter(
        2.0, "batches", "executors must be too many for at least so many batches, if batches are rare"
    )
    after_up_s: float = _parameter(
        1800.0, "s", "no executor is removed so soon after others started: the start has not paid off yet"
    )
    regret_s: float = _parameter(1800.0, "s", "a removal that is undone within this time was a mistake")
    max_regrets: int = _parameter(2, "times", "each such mistake of the last day doubles `down`, at most so many times")
    up_factor: float = _parameter(5.0, "times", "largest step up: a wrong rate cannot empty the budget")
    down_factor: float = _parameter(0.5, "times", "largest step down: a wrong rate cannot stop the pipeline")
    min_executors: int = _parameter(1, "executors", "least number; with one executor the driver keeps the trigger")
    max_executors: int = _parameter(100, "executors", "largest number")
    cost_per_executor_hour: float = _parameter(0.0, "money", "cost of an executor; 0: costs are not computed")
    max_cost_per_hour: float = _parameter(0.0, "money", "limit of the cost of all executors in an hour; 0: no limit")
    min_yield: float = _parameter(0.1, "share", "share of the expected rate; executors that bring less were in vain")
    yield_floor: float = _parameter(
        0.5, "share", "least yield of an added slot in the computation: one measurement is noisy"
    )
    min_yields: int = _parameter(
        3, "changes", "changes to measure before the yield of a slot counts; until then it is 1"
    )
    block_s: float = _parameter(1800.0, "s", "no executor is added for this time after some were in vain")
    max_driver_share: float = _parameter(
        0.5, "share", "share of a batch that the driver may take alone; above it the driver is the limit"
    )
    cap_share: float = _parameter(0.95, "share", "share of max_offsets from which a batch counts as full")
    max_skew: float = _parameter(3.0, "times", "longest task over the median; above it slots wait for one partition")
    stuck_batches: int = _parameter(
        3, "batches", "a partition with lag that makes no progress in so many batches is stuck"
    )
    max_gc: float = _parameter(
        0.15, "share", "share of the tasks' time in garbage collection; above it no executor is removed"
    )
    history_s: float = _parameter(86_400.0, "s", "time for which changes are remembered")
    excluded: tuple[str, ...] = _parameter(
        (), "cron", "minutes in which nothing is scaled, such as `* 9-17 * * MON-FRI`"
    )
    excluded_zone: str = _parameter("UTC", "zone", "time zone of the minutes in `excluded`")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not 0 < self.min_utilization < self.utilization_target < self.max_utilization <= 1:
            raise ConfigError(
                f"min_utilization {self.min_utilization:g} < utilization_target {self.utilization_target:g} < "
                f"max_utilization {self.max_utilization:g} must hold, in (0, 1]"
            )
        if not 1 <= self.min_executors <= self.max_executors:
            raise ConfigError(
                f"min_executors {self.min_executors} must be at least 1 and at most max_executors {self.max_executors}"
            )
        if not (self.up_factor > 1 and 0 < self.down_factor < 1):
            raise ConfigError(f"up_factor {self.up_factor:g} must be over 1, down_factor {self.down_factor:g} below it")
        for name in (
            "catch_up_duration_s",
            "interval_s",
            "window_s",
            "short_window_s",
            "max_facts_age_s",
            "start_s",
            "history_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name.removesuffix('_s')} must be more than 0, got {getattr(self, name):g} s")
        if self.max_cost_per_hour and not self.cost_per_executor_hour:
            raise ConfigError("max_cost_per_hour needs cost_per_executor_hour: what does an executor cost?")
        if 0 < self.max_cost_per_hour < self.min_executors * self.cost_per_executor_hour:
            raise ConfigError(
                f"max_cost_per_hour {self.max_cost_per_hour:g} does not pay for min_executors {self.min_executors}"
            )
        for expression in self.excluded:
            _matches(expression, datetime(2026, 1, 1))  # noqa: DTZ001 - a wall clock; raises ConfigError
        try:
            clock_of(self.excluded_zone)
        except (KeyError, ValueError, OSError) as error:
            raise ConfigError(
                f"excluded_zone {self.excluded_zone!r} cannot be used: {error}. Use an IANA name that this machine has"
            ) from error


DEFAULTS = Policy()


def parameters() -> dict[str, Field[Any]]:
    """Return the fields of a policy by the names that the configuration and `--set` have for them."""
    return {parameter.name.removesuffix("_s"): parameter for parameter in fields(Policy)}


def apply_assignments(policy: Policy, assignments: Iterable[str]) -> Policy:
    """Set `name=value` pairs: a time is a duration such as `10 min`, `;` separates expressions of `excluded`.

    Raises ConfigError.
    """
    by_name = parameters()
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} sets nothing; write it as utilization_target=0.7")
        if name not in by_name:
            raise ConfigError(f"no parameter {name!r}{did_you_mean(name, list(by_name))}")
        values[by_name[name].name] = _parse_value(name, value, by_name[name])
    return replace(policy, **values)


def _parse_value(name: str, text: str, parameter: Field[Any]) -> Any:
    """Return the value of a parameter, of the type of its default. Raises ConfigError."""
    default: Any = parameter.default
    is_duration = parameter.metadata["unit"] == "s"
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(";") if part.strip())
    try:
        if is_duration:
            return duration(text).total_seconds()
        return type(default)(text)
    except ValueError as error:
        if is_duration:
            kind = "a duration, such as 10 min"
        elif isinstance(default, int):
            kind = "a whole number"
        else:
            kind = "a number"
        raise ConfigError(f"{name}={text!r} is not {kind}; the default is {default}") from error
