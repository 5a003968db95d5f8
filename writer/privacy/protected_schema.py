"""Finds what a schema's own words, and paths, protect of its records, and writes the schema of what is left.

The record has its names in full, and each type is defined where it is named first. In the protected schema, what is
hashed, masked or encrypted is an enum in place of its text, what is dropped is gone, and a field that is protected, or
has something protected inside, has no default, which would stand in the clear.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.bucketers.arrow import suggest_name
from headrace.writer.privacy.column_protection import Protection
from headrace.writer.privacy.field_decryption import Decryption
from headrace.writer.privacy.keyring import KeySource, WrapSource
from headrace.writer.privacy.path_policies import (
    COLUMNS,
    COLUMNS_NAME,
    PATHS_MAX,
    Path,
    PathPolicies,
    RecordPolicies,
    count_paths,
    difference,
    find_clear_paths,
    format_path,
    merge_policies,
    overlay_policies,
    policies_of_today,
    policy_of_path,
)
from headrace.writer.privacy.policy import (
    Action,
    Policies,
    PrivacyError,
    ProtectedUse,
    TooManyPaths,
    Unprotects,
)
from headrace.writer.privacy.policy_visitor import PolicyVisitor, Record
from headrace.writer.privacy.record_sealing import RecordSealing
from headrace.writer.privacy.union_branches import (
    full_names,
    is_protected_name,
    names_branch,
)
from headrace.writer.specs.spec import Spec, spec_of


@dataclass(frozen=True)
class ColumnUse:
    """A column that a table needs as it is."""

    path: Path
    # Such as `the event time`.
    purpose: str
    # Its hash does as well.
    allows_hash: bool = False
    # It is a column that an event spec may have made.
    behind_specs: bool = True

    def allows(self, action: Action) -> bool:
        """Return whether the column may have a policy."""
        return action.kind == "clear" or (self.allows_hash and action.kind == "hash")


@dataclass(frozen=True)
class Privacy:
    """The policies of a pipeline, and what the words of its schemas say so far.

    What one schema of a record type has a tag on is protected in all schemas of the type: one without the tag would
    leak.
    """

    policies: Policies
    keys: KeySource
    uses: tuple[ColumnUse, ...] = ()
    # What schemas said, those of before included.
    tagged: RecordPolicies = field(default_factory=dict)
    # Key encryption keys of producers, by name.
    keks: Mapping[str, WrapSource] = field(default_factory=dict)
    # By schema id, where producers encrypt fields.
    decryptions: Mapping[int, Decryption] = field(default_factory=dict)
    # What the table's log has of `tagged`.
    recorded: RecordPolicies = field(default_factory=dict)

    @property
    def sealing(self) -> RecordSealing:
        """How records are kept that do not become rows, and raw ones."""
        return RecordSealing(None if self.policies.redacts else self.keys)

    @property
    def news(self) -> RecordPolicies:
        """What the table's log is to have before rows are protected by it."""
        return difference(self.tagged, self.recorded)

    def without_schemas(self) -> "Privacy":
        """Return it without what schemas said: the log's paths go first, where all are more than a log may have."""
        columns = {name: paths for name, paths in self.tagged.items() if name == COLUMNS}
        return replace(self, tagged=columns).with_log_policies(self.recorded)

    def with_log_policies(self, recorded: RecordPolicies) -> "Privacy":
        """Return it with what the table's log has, as if the schemas that said so were still there."""
        tagged = dict(self.tagged)
        for record, paths in policies_of_today(recorded, self.policies).items():
            tagged[record] = merge_policies([tagged.get(record, {}), paths], self.policies)
        return replace(self, tagged=tagged, recorded=overlay_policies(self.recorded, recorded))

    def note_log_policies(self, recorded: RecordPolicies) -> "Privacy":
        """Return it once the table's log has these paths."""
        return replace(self, recorded=overlay_policies(self.recorded, recorded))

    def with_columns(self, columns: Iterable[str]) -> "Privacy":
        """Return it with the policies of columns of keys and headers, which no schema has."""
        paths = {(name,): self.policies.by_path.get((name,)) for name in columns}
        named: PathPolicies = {
            path: policy_of_path(action, path) for path, action in paths.items() if action is not None
        }
        if named:
            return replace(self, tagged=overlay_policies(self.tagged, {COLUMNS: named}))
        return self

    def check_recorded(self, columns: Collection[str] = ()) -> None:
        """Raise Unprotects where a path would be in the clear that the table's log has as protected.

        `columns`: of keys and headers that the table has today.
        """
        for lost in find_clear_paths(self.recorded, self.policies, self.tagged):
            if lost.record != COLUMNS or lost.path[0] in columns:
                record = lost.record or COLUMNS_NAME
                command = f"headrace privacy release --record {record} --path {format_path(lost.path)!r}"
                raise Unprotects(
                    f"{lost} would be in the clear: the table's log has it as protected, and no policy of today says "
                    f"so. Put the policy back; or `{command}`."
                )

    def with_schemas(self, records: Iterable[Record]) -> "Privacy":
        """Return it with the words of these schemas, also of one that is rejected, as it cannot be protected.

        One with too many paths by its aliases and unions says what it does of each field's own name. One with more to
        protect than a log may have says nothing: else it would leave no place for others.
        """
        privacy = self
        schemas = list(records)
        before: Privacy | None = None
        # It repeats: an alias may lead from one schema's words to a field of another.
        while privacy != before:
            before = privacy
            for record in schemas:
                privacy = privacy._with_record(record)
        return privacy

    def protection(self, record: Record, specs: Sequence[Spec] = ()) -> Protection | None:
        """Return what is protected of a schema; None: nothing. Raises PrivacyError."""
        _check_names(record)
        visitor = self._visit(record)
        if count_paths({**self.tagged, **dict.fromkeys(record_names(record), visitor.path_policies)}) > PATHS_MAX:
            raise TooManyPaths(
                f"record {visitor.name} has fields to protect, and the table's log has {PATHS_MAX:,} protected paths, "
                "which is the most; give another pipeline its topic"
            )
        for use in self.uses:
            paths = _sources(use.path, visitor, specs) if use.behind_specs else [use.path]
            for path in paths:
                action = visitor.action_of(path)
                if not use.allows(action):
                    raise ProtectedUse(conflict(replace(use, path=path), action))
        for action in visitor.actions.values():
            if action.kind in ("hash", "encrypt") and getattr(self.keys, action.kind) is None:
                raise PrivacyError(f"a field has the policy {action}, and there is no such key; `headrace keys rotate`")
        return visitor.protection(self.keys)

    def actions(self, column: Path, record: Record, specs: Sequence[Spec]) -> list[Action]:
        """Return what becomes of the values of a column of the table. Raises PrivacyError."""
        visitor = self._visit(record)
        return [visitor.action_of(path) for path in _sources(column, visitor, specs)]

    def _with_record(self, record: Record) -> "Privacy":
        """Return it with the words of one schema, as many as fit."""
        try:
            path_policies = self._visit(record, learns=True).path_policies
        except TooManyPaths:
            path_policies = self._visit(record, learns=True, by_own_names=True).path_policies
        if all(self.tagged.get(name, {}) == path_policies for name in record_names(record)):
            return self
        tagged = {**self.tagged, **dict.fromkeys(record_names(record), path_policies)}
        if count_paths(tagged) > PATHS_MAX:
            return self
        return replace(self, tagged=tagged)

    def _visit(self, record: Record, *, learns: bool = False, by_own_names: bool = False) -> "PolicyVisitor":
        names = record_names(record)
        path_policies = merge_policies((self.tagged.get(name, {}) for name in names), self.policies)
        recorded = merge_policies((self.recorded.get(name, {}) for name in names), self.policies)
        visitor = PolicyVisitor(
            record, self.policies, path_policies, recorded, learns=learns, by_own_names=by_own_names
        )
        visitor.start()
        return visitor


def record_names(record: Record) -> list[str]:
    """Return the full names of a record: its own, and its aliases, which former schemas may have it under."""
    return full_names(record.root)


def _check_names(record: Record) -> None:
    """Raise PrivacyError for a type whose name is one of those that protected values get."""
    for named in record.named.values():
        for name in full_names(named):
            if is_protected_name(name):
                raise PrivacyError(f"type {name} has a name that headrace keeps for protected values; rename it")


def _sources(column: Path, visitor: "PolicyVisitor", specs: Sequence[Spec]) -> list[Path]:
    """Return the paths of a record that a column of the table holds, behind the record's spec."""
    spec = spec_of(specs, visitor.name)
    if spec is None:
        return [column]
    return spec.sources(column, visitor.actions)


def conflict(use: ColumnUse, action: Action) -> str:
    """Return what is wrong where a column that is needed as it is gets a policy."""
    alternative = ""
    if use.allows_hash:
        alternative = " or hash"
    return (
        f"field {'.'.join(use.path)!r} has the policy {action}, and is {use.purpose}, which needs the value as it is; "
        f"give it the policy clear{alternative} in privacy.fields, or take another column"
    )


def paths_of(record: Record, policies: Policies) -> set[str]:
    """Return the dotted paths of all fields of a record, and those of `policies` that lead into a JSON text."""
    visitor = PolicyVisitor(record, None, {}, {})
    visitor.start()
    paths = {path for path in visitor.paths if not names_branch(path)}
    for path in policies.by_path:
        if any(path[:length] in visitor.text_paths for length in range(1, len(path))):
            paths.add(path)
    return {".".join(path) for path in paths}


def check_paths(policies: Policies, schema_paths: set[str]) -> None:
    """Raise PrivacyError for a path that no schema has."""
    for path, _ in policies.fields:
        if path not in schema_paths:
            raise PrivacyError(f"privacy.fields: no known schema has {path!r}; {suggest_name(path, schema_paths)}")
