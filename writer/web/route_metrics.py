"""The metrics of a route and of its tables, for the catalogue."""

from collections.abc import Callable

from writer.table.pipeline_tables import TargetState
from writer.web.metric_types import Metric, Reading, Value, by_name, plain

_TARGET = ("pipeline", "target")


def _of_targets(read: Callable[[TargetState], float]) -> Callable[[Reading], list[Value]]:
    return by_name(lambda reading: {name: read(state) for name, state in reading.view.targets.items()})


def _rows(reading: Reading) -> dict[str, float]:
    sums = reading.view.totals.targets
    return {name: sums[name]["rows"] if name in sums else 0 for name in reading.view.targets}


def _behind(reading: Reading) -> dict[str, float]:
    since = {name: state.pending.since or reading.now for name, state in reading.view.targets.items()}
    return {name: max(0.0, (reading.now - start).total_seconds()) for name, start in since.items()}


ROUTES: tuple[Metric[Reading], ...] = (
    Metric("headrace_target_rows_total", "Rows committed for each table of a route.", by_name(_rows), _TARGET),
    Metric(
        "headrace_target_behind_seconds",
        "Age of the oldest entry of the pipeline's log that a table of a route does not have: seconds since it was put "
        "together; 0 while none waits for it.",
        by_name(_behind),
        _TARGET,
    ),
    Metric(
        "headrace_target_applied_version",
        "Version of the pipeline's log up to which a table of a route has all that is its own.",
        _of_targets(lambda state: state.pending.applied),
        _TARGET,
    ),
    Metric(
        "headrace_target_waiting_entries",
        "Entries of the pipeline's log that a table of a route does not have yet.",
        _of_targets(lambda state: state.pending.entries),
        _TARGET,
    ),
    Metric(
        "headrace_target_held_bytes",
        "Bytes of files that wait at the pipeline's log for a table of a route.",
        _of_targets(lambda state: state.pending.held_bytes),
        _TARGET,
    ),
    Metric(
        "headrace_max_held_bytes",
        "route.held.max_bytes: how many may wait for one table. Beyond it route.held.on_limit decides.",
        plain(lambda r: r.view.max_held_bytes),
    ),
    Metric(
        "headrace_names_without_table",
        "Names of a route that a rule matches and that have no table, since the start: refused (their location is "
        "taken), beyond_max (route.max_targets are made; 1,000 at most are counted).",
        by_name(lambda r: r.view.without_table),
        ("pipeline", "reason"),
    ),
)
