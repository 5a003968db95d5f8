"""Release of protected paths: what a table's log has as protected may be in the clear from the next start on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.config.base import did_you_mean
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.privacy.path_policies import (
    COLUMNS,
    COLUMNS_NAME,
    RELEASED,
    Path,
    PathPolicies,
    PathPolicy,
    RecordPolicies,
    effective_action,
    format_path,
)
from headrace.writer.privacy.policy import CLEAR, Action
from headrace.writer.table.factory import existing_table

ALL_PATHS = "*"


@dataclass(frozen=True)
class ReleaseRequest:
    """Which paths are released, by whom and why."""

    # None: of every record that has the path.
    record: str | None
    paths: list[str]
    by: str
    reason: str


@dataclass(frozen=True)
class ProtectedPath:
    """One path that the log has."""

    record: str
    path: Path
    policy: PathPolicy


class PathRelease:
    """The paths of a table that a request releases, and the step that enters them in its log."""

    def __init__(self, config: Config, pipeline: str, request: ReleaseRequest) -> None:
        """Find the paths. Raises ConfigError for one that is not protected, DriverAlive, CommitFailed."""
        check_no_driver(config, pipeline, "Stop it: it protects what it knows until it ends.")
        self._request = request
        self._table = existing_table(pipeline, config)
        protected = self._table.snapshot().protected_paths
        self._released = choose_paths(request, protected)
        # Each path, with the policy that it had.
        self.paths: Mapping[ProtectedPath, Action] = {
            path: effective_action(protected[path.record], path.path) for path in list_protected_paths(self._released)
        }

    def carry_out(self, now: datetime) -> int | None:
        """Enter the release in the log. Returns the version that holds it. Raises CommitFailed."""
        facts = {"by": self._request.by, "reason": self._request.reason, "at": now.isoformat()}
        return self._table.release_paths(self._released, facts)


def list_protected_paths(policies: RecordPolicies) -> list[ProtectedPath]:
    """Return all paths of a log, in the order of their records."""
    paths: list[ProtectedPath] = []
    for record, policies_of_record in sorted(policies.items()):
        paths += [ProtectedPath(record, path, policy) for path, policy in sorted(policies_of_record.items())]
    return paths


def choose_paths(request: ReleaseRequest, protected: RecordPolicies) -> dict[str, PathPolicies]:
    """Return what the log is to have of the paths that are released. Raises ConfigError for one that is not protected.

    A path below one that is protected may be released alone.
    """
    record = COLUMNS if request.record == COLUMNS_NAME else request.record
    if record is not None and record not in protected:
        names = [name or COLUMNS_NAME for name in protected]
        raise ConfigError(f"the log has no protected path of a record {record!r}{did_you_mean(record, names)}")
    records = protected if record is None else {record: protected[record]}
    released: dict[str, dict[Path, PathPolicy]] = {}
    for text in request.paths:
        matches = {name: dict(_match_paths(text, policies)) for name, policies in records.items()}
        if not any(matches.values()):
            raise _unknown_path(text, records)
        for name, policies in matches.items():
            if policies:
                released.setdefault(name, {}).update(policies)
    return dict(released)


def _unknown_path(text: str, records: RecordPolicies) -> ConfigError:
    names: list[str] = []
    for policies in records.values():
        names += [format_path(path) for path in policies if effective_action(policies, path) != CLEAR]
    return ConfigError(
        f"the log has no protected path {text!r}{did_you_mean(text, names)}; `headrace privacy list` has all"
    )


def _match_paths(text: str, policies: PathPolicies) -> Iterator[tuple[Path, PathPolicy]]:
    """Yield the protected paths that a person means."""
    paths_by_name = {format_path(path): path for path in policies}
    candidates = list(policies) if text == ALL_PATHS else [paths_by_name.get(text, tuple(text.split(".")))]
    for path in candidates:
        if effective_action(policies, path) != CLEAR:
            yield path, PathPolicy(CLEAR, RELEASED)
