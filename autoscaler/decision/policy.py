"""The parameters of the autoscaler, each with its unit, its default, and the reason."""

from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from cronsim import CronSim, CronSimError

from bucketers.zone_data import clock_of
from writer.config.base import did_you_mean
from writer.core.errors import ConfigError
from writer.core.units import duration


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
    return field(default=default, metadata={"unit": unit, "why": why})


@dataclass(frozen=True)
class Policy:
    """Parameters of a decision. Raises ConfigError for those that contradict each other."""

    utilization_target: float = _parameter(
        0.80, "share", "busy at this share of capacity after a change; the rest carries bursts"
    )
    utilization_max: float = _parameter(
        0.95, "share", "more executors only above it: what lies below is noise, or served"
    )
    utilization_min: float = _parameter(
        0.65, "share", "fewer executors only below it; with utilization_max the band in which nothing happens"
    )
    catch_up_duration_s: float = _parameter(
        900.0, "s", "a backlog is to be gone by then: half costs 3 % more, twice saves 1 %"
    )
    headroom_share: float = _parameter(
        0.25, "share", "of retention headroom: a backlog is gone in that time at the latest"
    )
    lag_slo_s: float = _parameter(
        300.0, "s", "lag beyond max_delay that is still good; no executor goes while it is more"
    )
    interval_s: float = _parameter(15.0, "s", "between two decisions")
    window_s: float = _parameter(600.0, "s", "rates are means over it: ten triggers of a minute")
    window_batches: float = _parameter(4.0, "batches", "and over as many batches at least, where they come seldom")
    short_window_s: float = _parameter(
        120.0, "s", "a rise of arrivals counts when it holds for it; a fall only over the window"
    )
    facts_age_max_s: float = _parameter(60.0, "s", "facts that are older are not acted on: four ticks were missed")
    batches_min: int = _parameter(
        2, "batches", "that must have finished in the window, else no rate is known: one is chance"
    )
    start_s: float = _parameter(60.0, "s", "an executor takes so long to come, until it was seen how long it takes")
    start_max_s: float = _parameter(900.0, "s", "and is believed to take so long at most: then it waits for quota")
    stable_s: float = _parameter(
        60.0, "s", "after executors came nothing is added for it: what they carry must show in the lag"
    )
    stable_batches: int = _parameter(1, "batches", "that must have run on all of them, before more is asked for")
    stable_max_s: float = _parameter(
        150.0, "s", "then more is asked for even without them: batches may be rare, or stuck"
    )
    down_s: float = _parameter(
        900.0, "s", "executors go when they were too many throughout; the most wanted in it stay"
    )
    down_batches: float = _parameter(2.0, "batches", "and through as many batches at least, where they come seldom")
    after_up_s: float = _parameter(
        1800.0, "s", "no executor goes so soon after others came: they have not paid for their start"
    )
    regret_s: float = _parameter(1800.0, "s", "executors that come back so soon should not have gone")
    regrets_max: int = _parameter(
        2, "times", "each such going of the last day doubles the wait for fewer, so often at most"
    )
    up_factor: float = _parameter(5.0, "times", "a step up at most: a wrong rate cannot empty the budget")
    down_factor: float = _parameter(0.5, "times", "a step down at most: a wrong rate cannot empty the pipeline")
    executors_min: int = _parameter(1, "executors", "never fewer; the driver keeps the trigger with one")
    executors_max: int = _parameter(100, "executors", "never more")
    cost_per_executor_hour: float = _parameter(0.0, "money", "what an executor costs; 0: it is not reckoned")
    cost_max_per_hour: float = _parameter(0.0, "money", "executors never cost more than it in an hour; 0: no limit")
    yield_min: float = _parameter(0.1, "share", "of what executors were to bring; those that bring less were in vain")
    yield_floor: float = _parameter(
        0.5, "share", "an added slot is not believed to bring less than it: one look is noisy"
    )
    yields_min: int = _parameter(
        3, "changes", "that were measured before the yield of a slot is believed; until then 1"
    )
    block_s: float = _parameter(1800.0, "s", "nothing is added for it after executors that were in vain")
    driver_share_max: float = _parameter(
        0.5, "share", "of a batch that the driver may take alone; beyond, it is the limit"
    )
    cap_share: float = _parameter(0.95, "share", "of max_records: a batch with so many took all that it was let")
    skew_max: float = _parameter(3.0, "times", "longest task over the median; beyond, slots wait for one partition")
    stuck_batches: int = _parameter(3, "batches", "without progress of a partition that has lag: it is stuck")
    gc_max: float = _parameter(0.15, "share", "of its tasks' time that an executor collects garbage; beyond, none goes")
    history_s: float = _parameter(86_400.0, "s", "changes are remembered so long")
    excluded: tuple[str, ...] = _parameter(
        (), "cron", "minutes in which nothing is scaled, such as `* 9-17 * * MON-FRI`"
    )
    excluded_zone: str = _parameter("UTC", "zone", "whose wall clock `excluded` means")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not 0 < self.utilization_min < self.utilization_target < self.utilization_max <= 1:
            raise ConfigError(
                f"utilization_min {self.utilization_min:g} < utilization_target {self.utilization_target:g} < "
                f"utilization_max {self.utilization_max:g} must hold, in (0, 1]"
            )
        if not 1 <= self.executors_min <= self.executors_max:
            raise ConfigError(
                f"executors_min {self.executors_min} must be at least 1 and at most executors_max {self.executors_max}"
            )
        if not (self.up_factor > 1 and 0 < self.down_factor < 1):
            raise ConfigError(f"up_factor {self.up_factor:g} must be over 1, down_factor {self.down_factor:g} below it")
        for name in (
            "catch_up_duration_s",
            "interval_s",
            "window_s",
            "short_window_s",
            "facts_age_max_s",
            "start_s",
            "history_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name.removesuffix('_s')} must be more than 0, got {getattr(self, name):g} s")
        if self.cost_max_per_hour and not self.cost_per_executor_hour:
            raise ConfigError("cost_max_per_hour needs cost_per_executor_hour: what does an executor cost?")
        if 0 < self.cost_max_per_hour < self.executors_min * self.cost_per_executor_hour:
            raise ConfigError(
                f"cost_max_per_hour {self.cost_max_per_hour:g} does not pay for executors_min {self.executors_min}"
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
