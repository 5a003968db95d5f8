"""Which paths of which records are protected, and by which words: of the schemas so far, and of a table's log.

Pure. A schema may be gone tomorrow, with the tag that it alone has. So a table's log keeps what schemas said, and a
start takes it as if they were still there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from headrace.writer.privacy.policy import CLEAR, Action, Policies, strictest

# Names of fields, as a configuration joins them by dots.
Path = tuple[str, ...]
# Of all records of a pipeline, in its table's log.
PATHS_MAX = 10_000
# A longer path counts as several: a log has them all, and names may be of any length.
_PATH_CHARACTERS = 1_000
# In place of the name of a record: columns of keys and headers.
COLUMNS = ""
# How a person calls these.
COLUMNS_NAME = "columns"
RELEASED = "released"
_PATH = "path"


@dataclass(frozen=True)
class PathPolicy:
    """What becomes of the values of a path, and what says so."""

    action: Action
    # `tag PII`, `attribute pii`, `path user.email`; or that a person released it.
    source: str

    @property
    def is_override(self) -> bool:
        """Whether it counts in place of what is said of the records around."""
        return self.source == RELEASED or self.source.partition(" ")[0] == _PATH

    def today(self, policies: Policies) -> "PathPolicy | None":
        """Return what its source says by the policies of today; None where it protected and does not any more."""
        kind, _, name = self.source.partition(" ")
        match kind:
            case "tag":
                action = dict(policies.tags).get(name, CLEAR)
            case "attribute":
                action = CLEAR
                if name in policies.attributes:
                    action = self.action
            case "path":
                action = policies.by_path.get(tuple(name.split(".")), CLEAR)
            case _:
                action = CLEAR
        if action == CLEAR:
            if self.action == CLEAR:
                return self
            return None
        return PathPolicy(action, self.source)


# Of one record.
PathPolicies = Mapping[Path, PathPolicy]
# By the full name of the record, and by its aliases.
RecordPolicies = Mapping[str, PathPolicies]


@dataclass(frozen=True)
class Unprotected:
    """A path that the table's log has as protected, and that nothing of today protects."""

    record: str
    path: Path
    # That of the log.
    policy: PathPolicy

    def __str__(self) -> str:
        """Return it as a phrase."""
        policy = f"{self.policy.action}, by {self.policy.source}"
        return f"{format_path(self.path)!r} of {format_record(self.record)} ({policy})"


def policy_of_path(action: Action, path: Path) -> PathPolicy:
    """Return the policy that the configuration has of a path."""
    return PathPolicy(action, f"{_PATH} {'.'.join(path)}")


def strictest_policy(path_policies: Iterable[PathPolicy], policies: Policies) -> PathPolicy:
    """Return the one of several that counts: the strictest of those whose source has a policy, else of all.

    Their order does not matter. Raises ValueError where there is none.
    """

    def rank(policy: PathPolicy) -> tuple[bool, bool, tuple[int, int], str]:
        return policy.action == CLEAR, policy.today(policies) is None, policy.action.rank, policy.source

    return min(path_policies, key=rank)


def effective_action(policies: PathPolicies, path: Path) -> Action:
    """Return what becomes of a path: what is said of it, and of what is around it."""
    action = CLEAR
    for length in range(len(path) + 1):
        policy = policies.get(path[:length])
        if policy is None:
            continue
        action = policy.action if policy.is_override else strictest([action, policy.action])
    return action


def merge_policies(parts: Iterable[PathPolicies], policies: Policies) -> dict[Path, PathPolicy]:
    """Return the policies of one record that is known by several names: of each path, the strictest."""
    merged = dict[Path, PathPolicy]()
    for part in parts:
        for path, policy in part.items():
            merged[path] = strictest_policy([merged.get(path, policy), policy], policies)
    return merged


def overlay_policies(policies: RecordPolicies, changed: RecordPolicies) -> dict[str, PathPolicies]:
    """Return policies with what changed of them."""
    records = dict(policies)
    for record, paths in changed.items():
        records[record] = {**policies.get(record, {}), **paths}
    return {record: paths for record, paths in records.items() if paths}


def difference(policies: RecordPolicies, recorded: RecordPolicies) -> dict[str, PathPolicies]:
    """Return what is not recorded yet, or otherwise."""
    news: dict[str, PathPolicies] = {}
    for record, paths in policies.items():
        recorded_paths = recorded.get(record, {})
        new_paths = {path: policy for path, policy in paths.items() if recorded_paths.get(path) != policy}
        if new_paths:
            news[record] = new_paths
    return news


def count_paths(policies: RecordPolicies) -> int:
    """Return how many paths there are, of all records; one of thousands of characters counts as several."""
    all_paths = chain.from_iterable(policies.values())
    return sum(1 + sum(map(len, path)) // _PATH_CHARACTERS for path in all_paths)


def is_any_protected(policies: RecordPolicies) -> bool:
    """Return whether values of some path get a policy other than clear."""
    return any(_has_protection(paths) for paths in policies.values())


def _has_protection(paths: PathPolicies) -> bool:
    return any(policy.action != CLEAR for policy in paths.values())


def policies_of_today(recorded: RecordPolicies, policies: Policies) -> dict[str, PathPolicies]:
    """Return what the log has, by the policies of today. What these say nothing of stays protected as it was."""
    return {
        record: {path: policy.today(policies) or policy for path, policy in paths.items()}
        for record, paths in recorded.items()
    }


def find_clear_paths(
    recorded: RecordPolicies, policies: Policies, policies_today: RecordPolicies
) -> Iterator[Unprotected]:
    """Yield the paths of the log that would be in the clear.

    `policies_today`: what the log and the schemas of today say, as `of_today` has it. What it says by a source that has
    no policy any more does not count.
    """
    for record, paths in recorded.items():
        current = {
            path: word
            for path, word in policies_today.get(record, {}).items()
            if word.action == CLEAR or word.today(policies)
        }
        of_paths = {path: policy_of_path(action, path) for path, action in policies.by_path.items()}
        for path, policy in paths.items():
            if policy.action != CLEAR and effective_action({**current, **of_paths}, path) == CLEAR:
                yield Unprotected(record, path, policy)


def format_path(path: Path) -> str:
    """Return a path as a person writes it."""
    return ".".join(path) or "the record itself"


def format_record(record: str) -> str:
    """Return the record of a path as a sentence names it."""
    if record == COLUMNS:
        return "the columns of keys and headers"
    return f"record {record}"


def to_json(policies: RecordPolicies) -> dict[str, list[Any]]:
    """Write policies as a log has them."""
    return {
        record: [[list(path), policy.action.setting, policy.source] for path, policy in sorted(paths.items())]
        for record, paths in sorted(policies.items())
    }


def from_json(written: Mapping[str, list[Any]]) -> dict[str, PathPolicies]:
    """Read policies as a log has them."""
    return {
        record: {tuple(path): PathPolicy(Action.of(setting), source) for path, setting, source in paths}
        for record, paths in written.items()
    }
