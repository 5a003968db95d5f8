"""Visits the types of one schema, and decides what becomes of the values of each field, by its words and its paths."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any, Protocol

from headrace.writer.privacy.column_protection import ColumnPath, Protection, check_map_keys
from headrace.writer.privacy.json_text import is_json_text, is_rest
from headrace.writer.privacy.keyring import KeySource
from headrace.writer.privacy.path_policies import (
    Path,
    PathPolicies,
    PathPolicy,
    effective_action,
    format_path,
    format_record,
    policy_of_path,
    strictest_policy,
)
from headrace.writer.privacy.policy import (
    CLEAR,
    Action,
    Policies,
    PrivacyError,
    TooManyPaths,
    Unprotects,
    policy_of_text,
    strictest,
)
from headrace.writer.privacy.union_branches import (
    PROMOTED,
    branch_names,
    group_by_fields,
    is_branch,
    is_complex,
    is_number_pair,
    names_branch,
    own_name,
    protected_text,
    type_name,
    wider_paths,
)

# Those of one field, by its names and aliases, and by names of branches around it.
Paths = frozenset[Path]
_DROP = Action("drop")
# Attribute of a record schema: the format of its values.
_FORMAT = "headrace.format"
_FORMATS_WITH_JSON = ("json", "protobuf")
# Of the paths of one schema: each alias, and each branch of a union, multiplies those inside.
_NAMES_MAX = 100_000


class Record(Protocol):
    """A record schema, parsed."""

    @property
    def root(self) -> Mapping[str, Any]:
        """The record."""

    @property
    def named(self) -> Mapping[str, Any]:
        """Every named type by its full name."""


_ReadAttributes = Callable[[Mapping[str, Any], str], list[tuple[Action, str]]]


class PolicyVisitor:
    """Visits the types of one schema, and decides what becomes of the values of each."""

    def __init__(
        self,
        record: Record,
        policies: Policies | None,
        path_policies: dict[Path, PathPolicy],
        recorded: PathPolicies,
        *,
        learns: bool = False,
        by_own_names: bool = False,
    ) -> None:
        """`policies`: None to look at the fields alone, whatever their tags. `recorded`: what the table's log has.

        `learns`: only the words are of interest, and what cannot be protected is no error. `by_own_names`: each field
        has one path, without aliases and positions.
        """
        self._by_own_names = by_own_names
        self._record = record
        self._policies = policies or Policies()
        self.name = str(record.root["name"])
        self._learns = learns
        self._read_attributes: _ReadAttributes = self._read_nothing
        if policies:
            self._read_attributes = policies.read_known_attributes if learns else policies.read_attributes
        self._recorded = recorded
        # The policies of paths so far; grows.
        self.path_policies = path_policies
        # Branches of unions in other schemas, of which, or of whose insides, something is said.
        self._branches = set[Path]()
        for path in path_policies:
            self._branches |= {path[: index + 1] for index, step in enumerate(path) if is_branch(step)}
        self._policies_by_fields = group_by_fields(path_policies)
        self._branches_by_fields = group_by_fields(self._branches)
        self.column_actions = dict[ColumnPath, Action]()
        # What becomes of each path that is protected.
        self.actions = dict[Path, Action]()
        self.paths = set[Path]()
        self.dropped = set[Path]()
        # Of columns of JSON texts, in which paths of the configuration may go on.
        self.text_paths = set[Path]()
        # Of branches of unions, which mean others in another schema.
        self._positions = set[Path]()
        # Of types that are branches in another schema, and go by those names.
        self._branch_elsewhere = set[Path]()
        self._root: Any = None
        # Only its values have JSON texts: no producer of others can set its attributes.
        self._is_json = record.root.get(_FORMAT) in _FORMATS_WITH_JSON
        # Path → next step → policies there and inside, of this record's columns in other schemas, too.
        self._actions_below: Mapping[Path, Mapping[str, Collection[Action]]] = {}
        if self._is_json:
            self._actions_below = _group_actions((path, policy.action) for path, policy in path_policies.items())

    def start(self) -> None:
        """Go through the record. Raises PrivacyError."""
        action = strictest(self._remember(frozenset([()]), []))
        self._root = self._visit_type(self._record.root, (), frozenset([()]), action)

    def action_of(self, path: Path) -> Action:
        """Return what becomes of a path."""
        if any(path[:length] in self.dropped for length in range(1, len(path))):
            return _DROP
        return self.actions.get(path, CLEAR)

    def protection(self, keys: KeySource) -> Protection | None:
        """Return what is protected of the record, once `start` visited it; None: nothing."""
        if not self.column_actions:
            return None
        schema = self._root or _empty_record(self._record.root)
        text = json.dumps(_TypeFolding(self._record.named).fold(schema))
        return Protection(text, self.column_actions, keys)

    def _visit_type(
        self,
        schema: Any,
        column_path: ColumnPath,
        paths: Paths,
        above: Action,
        *,
        named: bool = False,
        is_member: bool = False,
    ) -> Any | None:
        """Return the type that is left; None: nothing.

        `above`: policy of what is around it; `named`: by its path. `is_member`: it is a branch here, too.
        """
        # In another schema the type may be a branch of a union, where something is protected.
        branches: Paths = frozenset()
        if not self._by_own_names and not is_member:
            named_paths = self._branch_paths(paths, self._resolve(schema))
            branches = frozenset(path for path in named_paths if self._has_branch(path))
        if branches:
            self._branch_elsewhere |= paths
            paths |= branches
            actions = [self.path_policies[path].action for path in branches if path in self.path_policies]
            if not named:
                above = strictest([above, *actions])
        schema, action = self._resolve_type(schema, paths, above, named=named)
        if action.kind == "drop" and column_path:
            self._drop(column_path, paths)
            return None
        if isinstance(schema, list):
            return self._visit_union(schema, column_path, paths, action, named=named)
        match schema["type"] if isinstance(schema, dict) else schema:
            case "null":
                return schema
            case "record":
                fields_left = self._visit_fields(schema["fields"], column_path, paths, action)
                if fields_left or not schema["fields"]:
                    return {**schema, "fields": fields_left}
                return None
            case "array":
                items = self._visit_type(schema["items"], (*column_path, "element"), paths, action, named=named)
                if items is None:
                    return None
                return {**schema, "items": items}
            case "map":
                return self._visit_map(schema, column_path, paths, action, named=named)
        if action.kind == "clear":
            if self._is_json and is_json_text(schema):
                self._visit_members_of_text(column_path, paths)
            return schema
        self._protect_scalar(schema, column_path, paths, action)
        return protected_text(schema)

    def _resolve_type(self, schema: Any, paths: Paths, action: Action, *, named: bool) -> tuple[Any, Action]:
        """Return the definition of a type, and the strictest policy of its attributes and of `action`."""
        read_attributes = self._read_attributes
        if named:
            read_attributes = self._read_nothing
        while True:
            if isinstance(schema, str) and schema in self._record.named:
                schema = self._record.named[schema]
            if not isinstance(schema, dict):
                return schema, action
            attributes = read_attributes(schema, _format_paths(paths))
            if attributes:
                action = strictest([action, *self._remember(paths, attributes)])
            if "name" in schema or not isinstance(schema["type"], dict | list):
                return schema, action
            schema = schema["type"]

    def _visit_map(
        self, schema: Any, column_path: ColumnPath, paths: Paths, action: Action, *, named: bool
    ) -> Any | None:
        values = self._visit_type(schema["values"], (*column_path, "value"), paths, action, named=named)
        if values is None:
            return None
        if action.kind != "clear":
            if not self._learns:
                check_map_keys(_format_paths(paths), action)
            self.column_actions[(*column_path, "key")] = action
        return {**schema, "values": values}

    def _visit_fields(
        self, fields: Sequence[Mapping[str, Any]], column_path: ColumnPath, paths: Paths, policy: Action
    ) -> list[Any]:
        """Return what is left of the fields of a record. The policy of `rest` depends on all others, so it is last."""
        order = sorted(range(len(fields)), key=lambda index: self._is_rest(fields[index]))
        visited = {index: self._visit_field(fields[index], column_path, paths, policy) for index in order}
        return [visited[index] for index in range(len(fields)) if visited[index] is not None]

    def _visit_field(
        self, member: Mapping[str, Any], parent_path: ColumnPath, parent_paths: Paths, policy: Action
    ) -> Any | None:
        names = {member["name"]}
        if not self._by_own_names:
            names |= set(member.get("aliases", ()))
        self._check_count(len(parent_paths) * len(names))
        paths = self._extend(parent_paths, names)
        column_path = (*parent_path, member["name"])
        self.paths |= paths
        action, named = self._decide(paths, policy, member)
        if not named and self._is_rest(member):
            action = self._policy_of_rest(action, parent_path, parent_paths, names)
        if action.kind == "drop":
            self._drop(column_path, paths)
            return None
        count_before = len(self.column_actions)
        kind = self._visit_type(member["type"], column_path, paths, action, named=named)
        if kind is None:
            return None
        changed = {**member, "type": kind}
        # A default would stand in the clear.
        if len(self.column_actions) != count_before:
            changed.pop("default", None)
        return changed

    def _is_rest(self, member: Mapping[str, Any]) -> bool:
        """Return whether a field takes the members of its object that no other field takes."""
        if not self._is_json:
            return False
        resolved = self._resolve(member["type"])
        branches = resolved if isinstance(resolved, list) else [resolved]
        return any(is_rest(self._resolve(branch)) for branch in branches)

    def _policy_of_rest(
        self, action: Action, parent_path: ColumnPath, parent_paths: Paths, names: Collection[str]
    ) -> Action:
        """Return the policy of what an object has besides its fields: any value that is protected in it may be there.

        It may have another name there, or not the type of its column, or no column any more. `action`: what is said of
        the object and of the field itself. `names`: of the field.
        """
        actions = [action]
        actions += [inner for path, inner in self.column_actions.items() if path[: len(parent_path)] == parent_path]
        for parent in parent_paths:
            for step, inside in self._actions_below.get(parent, {}).items():
                if step not in names:
                    actions += inside
        # Paths that no configuration has lead into a member of this name, of another schema.
        others = self.path_policies.keys() - self._policies.by_path.keys()
        own_paths = self._paths_inside(others, self._extend(parent_paths, names))
        actions += [self.path_policies[path].action for path in own_paths]
        return policy_of_text(actions)

    def _visit_members_of_text(self, column_path: ColumnPath, paths: Paths) -> None:
        """Decide over members of JSON texts, which paths alone lead to: of the configuration and of other schemas."""
        self.text_paths |= paths
        inside = dict[Path, list[Path]]()
        for path in self._paths_inside([*self._policies.by_path, *self.path_policies], paths):
            parent_length = max(len(parent) for parent in paths if path[: len(parent)] == parent)
            steps = tuple(step for step in path[parent_length:] if not is_branch(step))
            if steps:
                inside.setdefault(steps, []).append(path)
        protected = dict[Path, Action]()
        for steps, same_paths in inside.items():
            member_paths = frozenset((*path, *steps) for path in paths)
            action, named = self._decide(member_paths, CLEAR, {})
            if not named:
                others = [self.path_policies[path].action for path in same_paths if path in self.path_policies]
                action = strictest([action, *others])
            if action != CLEAR:
                protected[steps] = action
                self._note_actions(member_paths, action)
                self.column_actions[(*column_path, *steps)] = action
        for steps, action in protected.items():
            self._check_one_value(frozenset((*path, *steps) for path in paths), action)

    def _check_one_value(self, paths: Paths, action: Action) -> None:
        """Raise PrivacyError where the configuration has a path inside JSON that becomes one value."""
        inside = self._paths_inside(self._policies.by_path, paths)
        if inside and action.kind != "drop" and not self._learns:
            path = format_path(min(inside))
            raise PrivacyError(
                f"field {_format_paths(paths)!r} is JSON that becomes one value by the policy {action}, and "
                f"privacy.fields has {path!r}, which lies in it; take that path out, or give "
                f"{_format_paths(paths)!r} the policy clear in privacy.fields"
            )

    @staticmethod
    def _paths_inside(others: Collection[Path], paths: Paths) -> set[Path]:
        """Return which of other paths lead into one of these."""
        return {
            other for other in others if any(len(other) > len(path) and other[: len(path)] == path for path in paths)
        }

    @staticmethod
    def _extend(paths: Paths, steps: Collection[str]) -> Paths:
        return frozenset(chain.from_iterable([(*path, step) for step in steps] for path in paths))

    def _decide(self, paths: Paths, above: Action, part: Mapping[str, Any]) -> tuple[Action, bool]:
        """Return the policy of a field, or of a branch of a union, and whether its path has it."""
        named = [path for path in paths if path in self._policies.by_path]
        if not named:
            attributes = self._read_attributes(part, _format_paths(paths))
            return strictest([above, *self._remember(paths, attributes)]), False
        policies = [policy_of_path(self._policies.by_path[path], path) for path in named]
        policy = strictest_policy(policies, self._policies)
        if policy.action == CLEAR and not self._learns:
            self._check_clear(paths, policy)
        for path in self._shared_paths(paths):
            before = self.path_policies.get(path)
            if policy.action != CLEAR:
                self.path_policies[path] = strictest_policy([policy, before or policy], self._policies)
            elif before is None or names_branch(path):
                self.path_policies[path] = before or policy
        return policy.action, True

    def _check_clear(self, paths: Paths, policy: PathPolicy) -> None:
        """Raise Unprotects where the table's log has a path as protected that the configuration has as clear."""
        protected = [path for path in sorted(paths) if effective_action(self._recorded, path) != CLEAR]
        if protected:
            path = protected[0]
            raise Unprotects(
                f"{format_path(path)!r} of {format_record(self.name)} would be in the clear by {policy.source}: the "
                f"table's log has it as protected ({effective_action(self._recorded, path)}). Take the path out of "
                f"privacy.fields; or `headrace privacy release --record {self.name} --path {format_path(path)!r}`."
            )

    def _visit_union(
        self, schema: list[Any], column_path: ColumnPath, paths: Paths, action: Action, *, named: bool
    ) -> Any | None:
        branches = [(self._resolve(branch), branch) for branch in schema]
        types = [resolved for resolved, _ in branches if resolved != "null"]
        if action.kind != "clear" and types and not any(is_complex(resolved) for resolved, _ in branches):
            # Also of several branches: it is the text of the one that is set.
            self._protect_scalar(types[0], column_path, paths, action)
            text = protected_text(types[0] if len(types) == 1 else types)
            if len(types) < len(schema):
                return ["null", text]
            return [text]
        if len(types) < 2:  # noqa: PLR2004 - null and one
            types_left = [
                branch if resolved == "null" else self._visit_type(branch, column_path, paths, action, named=named)
                for resolved, branch in branches
            ]
            if None in types_left:
                return None
            return types_left
        members = self._visit_members(branches, column_path, paths, action)
        if is_number_pair(types):
            return self._join_number_pair(members, column_path, paths)
        return members

    def _visit_members(
        self, branches: Sequence[tuple[Any, Any]], column_path: ColumnPath, paths: Paths, action: Action
    ) -> list[Any]:
        """Return what is left of the branches of a union of several. `branches`: each resolved, and as it stands."""
        present = set[str]()
        for resolved, _ in branches:
            present |= branch_names(resolved)
        members = list[Any]()
        number = 0
        for resolved, branch in branches:
            if resolved == "null":
                members.append(branch)
                continue
            step = f"member{number}"
            number += 1
            named_paths = self._branch_paths(paths, resolved, present)
            positions = frozenset[Path]() if self._by_own_names else self._extend(paths, [step])
            self._positions |= positions
            members.append(self._visit_member(branch, (*column_path, step), positions | named_paths, action))
        return members

    def _join_number_pair(self, members: list[Any], column_path: ColumnPath, paths: Paths) -> list[Any] | None:
        """Return what is left of a union that a table has as one column of numbers, so that one policy is for both."""
        actions = [self.column_actions.pop((*column_path, step), CLEAR) for step in ("member0", "member1")]
        action = strictest(actions)
        if action == CLEAR:
            return members
        if actions[0] != actions[1] and not self._learns:
            raise PrivacyError(
                f"field {_format_paths(paths)!r} is a union of two numbers, which are one column, and their policies "
                "differ; give the whole field a policy"
            )
        if action.kind == "drop":
            self._drop(column_path, paths)
            return None
        self._protect(column_path, paths, action)
        nulls = [member for member in members if member == "null"]
        return [*nulls, protected_text("long")]

    def _visit_member(self, schema: Any, column_path: ColumnPath, paths: Paths, policy: Action) -> Any:
        """Return a branch of a union; one of which nothing is left keeps its position."""
        self.paths |= paths
        action, named = self._decide(paths, policy, {})
        kind = None
        if action.kind == "drop":
            self._drop(column_path, paths)
        else:
            kind = self._visit_type(schema, column_path, paths, action, named=named, is_member=True)
        if kind is None:
            return _empty_record(self._resolve(schema))
        return kind

    def _remember(self, paths: Paths, attributes: list[tuple[Action, str]]) -> list[Action]:
        """Return what is said of a field, here and in other schemas, and remember it by all its names."""
        shared_paths = self._shared_paths(paths)
        policies = [PathPolicy(action, source) for action, source in attributes]
        policies += [self.path_policies[path] for path in shared_paths if path in self.path_policies]
        for path in shared_paths:
            policies += [self.path_policies[wider] for wider in wider_paths(path, self._policies_by_fields)]
        if not policies:
            return []
        self.path_policies |= dict.fromkeys(shared_paths, strictest_policy(policies, self._policies))
        return [policy.action for policy in policies]

    def _check_count(self, more: int) -> None:
        """Raise TooManyPaths where so many more paths are too many."""
        if len(self.paths) + more > _NAMES_MAX:
            raise TooManyPaths(
                f"the fields of record {self.name} have more than {_NAMES_MAX:,} paths by their aliases and the unions "
                "around them; take aliases out"
            )

    def _branch_paths(self, paths: Paths, resolved: Any, present: Collection[str] = ()) -> Paths:
        """Return the paths of a branch by its names, which it has in each schema, at whatever position.

        A number fills the column of another type of number, and text that of bytes. So it has their names, too, where
        no other of these is among the branches that are `present`.
        """
        if self._by_own_names:
            return self._extend(paths, [f"<{own_name(resolved)}>"])
        names = branch_names(resolved)
        promoted = set(chain.from_iterable(PROMOTED.get(name, ()) for name in names))
        if (promoted - names).isdisjoint(present):
            names |= promoted
        self._check_count(len(paths) * len(names))
        return self._extend(paths, [f"<{name}>" for name in names])

    def _has_branch(self, path: Path) -> bool:
        """Return whether something is said of a branch of a union in another schema, or of its insides."""
        return path in self._branches or any(wider_paths(path, self._branches_by_fields))

    def _shared_paths(self, paths: Paths) -> list[Path]:
        """Return the paths that mean the same in another schema: none goes by the position of a branch.

        Nor does one go into a branch without its name, where that is known: it would mean all branches.
        """
        return [path for path in paths if not any(self._is_ambiguous(path, length) for length in range(len(path)))]

    def _is_ambiguous(self, path: Path, length: int) -> bool:
        """Return whether the step behind so many is to one of several branches, and does not name it."""
        if path[: length + 1] in self._positions:
            return True
        return not is_branch(path[length]) and path[:length] in self._branch_elsewhere

    def _protect_scalar(self, schema: Any, column_path: ColumnPath, paths: Paths, action: Action) -> None:
        if self._is_json and is_json_text(schema):
            self._check_one_value(paths, action)
        self._protect(column_path, paths, action)

    def _protect(self, column_path: ColumnPath, paths: Paths, action: Action) -> None:
        self.column_actions[column_path] = action
        self._note_actions(paths, action)

    def _drop(self, column_path: ColumnPath, paths: Paths) -> None:
        self.column_actions[column_path] = _DROP
        self.dropped |= paths
        self._note_actions(paths, _DROP)

    def _note_actions(self, paths: Paths, action: Action) -> None:
        for path in paths:
            for length in range(1, len(path) + 1):
                self.actions[path[:length]] = strictest([action, self.actions.get(path[:length], action)])

    def _resolve(self, schema: Any) -> Any:
        while isinstance(schema, dict) and "name" not in schema and isinstance(schema["type"], dict | list):
            schema = schema["type"]
        if isinstance(schema, str):
            return self._record.named.get(schema, schema)
        return schema

    @staticmethod
    def _read_nothing(*_: Any) -> list[tuple[Action, str]]:
        return []


def _format_paths(paths: Paths) -> str:
    path = min((path for path in paths if not names_branch(path)), default=min(paths))
    return ".".join(path) or "the record itself"


def _group_actions(actions: Iterable[tuple[Path, Action]]) -> dict[Path, dict[str, set[Action]]]:
    """Return the policies of what lies in each path, by the next step; without `clear`."""
    groups = dict[Path, dict[str, set[Action]]]()
    for path, action in actions:
        for length in range(len(path)):
            if action != CLEAR:
                groups.setdefault(path[:length], {}).setdefault(path[length], set()).add(action)
    return groups


def _empty_record(schema: Any) -> dict[str, Any]:
    """Return a record without fields, in place of a type; no table has a column for it."""
    name = None
    if isinstance(schema, dict):
        name = schema.get("name")
    # The branches of a union differ by their names.
    return {"type": "record", "name": name or f"headrace.dropped.{type_name(schema)}", "fields": []}


class _TypeFolding:
    """Defines each named type of a protected schema once, of which each place may have left another part.

    A type that is left otherwise in two places gets another name in the second. The former name is its alias: so a
    branch of a union is known by it, wherever else the type stands.
    """

    def __init__(self, names: Collection[str]) -> None:
        """`names`: of all types, none of which is given to another."""
        self._taken = set(names)
        # Full name → content → name.
        self._names = dict[str, dict[str, str]]()

    def fold(self, schema: Any) -> Any:
        """Return a schema whose types are defined where they first stand."""
        if isinstance(schema, list):
            return [self.fold(branch) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        if "name" in schema:
            contents = self._names.setdefault(schema["name"], {})
            content = json.dumps(schema, sort_keys=True)
            if content in contents:
                return contents[content]
            name = schema["name"] if not contents else self._free_name(schema["name"])
            contents[content] = name
            if name != schema["name"]:
                schema = {**schema, "name": name, "aliases": [schema["name"], *schema.get("aliases", ())]}
            if "." not in name:
                schema["namespace"] = ""
        inside = {key: self.fold(schema[key]) for key in ("items", "values", "type") if key in schema}
        if "fields" in schema:
            inside["fields"] = [{**part, "type": self.fold(part["type"])} for part in schema["fields"]]
        return {**schema, **inside}

    def _free_name(self, name: str) -> str:
        """Return a name like this one that no type has."""
        free = next(other for number in count(2) if (other := f"{name}_{number}") not in self._taken)
        self._taken.add(free)
        return free
