"""Finds what a schema's own words, and paths, protect of its records, and writes the schema of what is left.

The record has its names in full, and each type is defined where it is named first. In the protected schema, what is
hashed, masked or encrypted is an enum in place of its text, what is dropped is gone, and a field that is protected, or
has something protected inside, has no default, which would stand in the clear.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bucketers.arrow import suggest_name
from writer.privacy.column_protection import Place, Protection, check_keys
from writer.privacy.field_decryption import Decryption
from writer.privacy.keyring import KeySource, WrapSource
from writer.privacy.path_policies import (
    COLUMNS,
    COLUMNS_NAME,
    PATHS_MAX,
    Path,
    PathPolicies,
    PathPolicy,
    RecordPolicies,
    by_path,
    count_paths,
    difference,
    effective,
    find_unprotected,
    joined,
    of_today,
    overlaid,
    shown_path,
    shown_record,
    strictest_policy,
)
from writer.privacy.policy import (
    CLEAR,
    Action,
    Policies,
    PrivacyError,
    ProtectedUse,
    TooManyPaths,
    Unprotects,
    strictest,
)
from writer.privacy.record_sealing import RecordSealing
from writer.privacy.type_folding import TypeFolding
from writer.privacy.union_branches import (
    PROMOTED,
    branch_names,
    full_names,
    group_by_fields,
    is_branch,
    is_complex,
    is_number_pair,
    is_protected_name,
    names_branch,
    own_name,
    protected_text,
    type_name,
    wider_paths,
)
from writer.specs.spec import Spec, spec_of

Paths = frozenset[Path]  # those of one field, by its names and aliases, and by names of branches around it
_DROP = Action("drop")
_NAMES_MAX = 100_000  # of the paths of one schema: each alias, and each branch of a union, multiplies those inside


class Record(Protocol):
    """A record schema, parsed."""

    @property
    def root(self) -> Mapping[str, Any]:
        """The record."""

    @property
    def named(self) -> Mapping[str, Any]:
        """Every named type by its full name."""


@dataclass(frozen=True)
class ColumnUse:
    """A column that a table needs as it is."""

    path: Path
    what: str  # such as `the event time`
    hashed: bool = False  # its hash does as well
    behind_specs: bool = True  # it is a column that an event spec may have made

    def allows(self, action: Action) -> bool:
        """Return whether the column may have a policy."""
        return action.kind == "clear" or (self.hashed and action.kind == "hash")


@dataclass(frozen=True)
class Privacy:
    """The policies of a pipeline, and what the words of its schemas say so far.

    What one schema of a record type has a tag on is protected in all schemas of the type: one without the tag would
    leak.
    """

    policies: Policies
    keys: KeySource
    uses: tuple[ColumnUse, ...] = ()
    tagged: RecordPolicies = field(default_factory=dict)  # what schemas said, those of before included
    keks: Mapping[str, WrapSource] = field(default_factory=dict)  # key encryption keys of producers, by name
    decryptions: Mapping[int, Decryption] = field(default_factory=dict)  # by schema id, where producers encrypt fields
    recorded: RecordPolicies = field(default_factory=dict)  # what the table's log has of `tagged`

    @property
    def sealing(self) -> RecordSealing:
        """How records are kept that do not become rows, and raw ones."""
        return RecordSealing(None if self.policies.redacts else self.keys)

    @property
    def news(self) -> RecordPolicies:
        """What the table's log is to have before rows are protected by it."""
        return difference(self.tagged, self.recorded)

    def forgetting_schemas(self) -> "Privacy":
        """Return it without what schemas said: the log's paths go first, where all are more than a log may have."""
        columns = {name: paths for name, paths in self.tagged.items() if name == COLUMNS}
        return replace(self, tagged=columns).remembering(self.recorded)

    def remembering(self, recorded: RecordPolicies) -> "Privacy":
        """Return it with what the table's log has, as if the schemas that said so were still there."""
        tagged = dict(self.tagged)
        for record, paths in of_today(recorded, self.policies).items():
            tagged[record] = joined([tagged.get(record, {}), paths], self.policies)
        return replace(self, tagged=tagged, recorded=overlaid(self.recorded, recorded))

    def recording(self, recorded: RecordPolicies) -> "Privacy":
        """Return it once the table's log has these paths."""
        return replace(self, recorded=overlaid(self.recorded, recorded))

    def with_columns(self, columns: Iterable[str]) -> "Privacy":
        """Return it with the policies of columns of keys and headers, which no schema has."""
        paths = {(name,): self.policies.by_path.get((name,)) for name in columns}
        named: PathPolicies = {path: by_path(action, path) for path, action in paths.items() if action is not None}
        return replace(self, tagged=overlaid(self.tagged, {COLUMNS: named})) if named else self

    def check_recorded(self, columns: Collection[str] = ()) -> None:
        """Raise Unprotects where a path would be in the clear that the table's log has as protected.

        `columns`: of keys and headers that the table has today.
        """
        for one in find_unprotected(self.recorded, self.policies, self.tagged):
            if one.record != COLUMNS or one.path[0] in columns:
                command = (
                    f"headrace privacy release --record {one.record or COLUMNS_NAME} --path {shown_path(one.path)!r}"
                )
                raise Unprotects(
                    f"{one} would be in the clear: the table's log has it as protected, and no policy of today says "
                    f"so. Put the policy back; or `{command}`."
                )

    def learned(self, records: Iterable[Record]) -> "Privacy":
        """Return it with the words of these schemas, also of one that is rejected, as it cannot be protected.

        One with too many paths by its aliases and unions says what it does of each field's own name. One with more to
        protect than a log may have says nothing: else it would leave no place for others.
        """
        privacy = self
        known = list(records)
        before: Privacy | None = None
        while privacy != before:  # an alias may lead from one schema's words to a field of another
            before = privacy
            for record in known:
                privacy = privacy._with(record)
        return privacy

    def protection(self, record: Record, specs: Sequence[Spec] = ()) -> Protection | None:
        """Return what is protected of a schema; None: nothing. Raises PrivacyError."""
        _check_names(record)
        walk = self._walked(record)
        if count_paths({**self.tagged, **dict.fromkeys(record_names(record), walk.words)}) > PATHS_MAX:
            raise TooManyPaths(
                f"record {walk.name} has fields to protect, and the table's log has {PATHS_MAX:,} protected paths, "
                "which is the most; give another pipeline its topic"
            )
        for use in self.uses:
            for path in [use.path] if not use.behind_specs else _sources(use.path, walk, specs):
                if not use.allows(action := walk.action_of(path)):
                    raise ProtectedUse(conflict(replace(use, path=path), action))
        for action in walk.actions.values():
            if action.kind in ("hash", "encrypt") and getattr(self.keys, action.kind) is None:
                raise PrivacyError(f"a field has the policy {action}, and there is no such key; `headrace keys rotate`")
        return walk.protection(self.keys)

    def actions(self, column: Path, record: Record, specs: Sequence[Spec]) -> list[Action]:
        """Return what becomes of the values of a column of the table. Raises PrivacyError."""
        walk = self._walked(record)
        return [walk.action_of(path) for path in _sources(column, walk, specs)]

    def _with(self, record: Record) -> "Privacy":
        """Return it with the words of one schema, as many as fit."""
        try:
            words = self._walked(record, learns=True).words
        except TooManyPaths:
            words = self._walked(record, learns=True, by_own_names=True).words
        if all(self.tagged.get(name, {}) == words for name in record_names(record)):
            return self
        tagged = {**self.tagged, **dict.fromkeys(record_names(record), words)}
        return self if count_paths(tagged) > PATHS_MAX else replace(self, tagged=tagged)

    def _walked(self, record: Record, *, learns: bool = False, by_own_names: bool = False) -> "_Walk":
        names = record_names(record)
        words = joined((self.tagged.get(name, {}) for name in names), self.policies)
        recorded = joined((self.recorded.get(name, {}) for name in names), self.policies)
        walk = _Walk(record, self.policies, words, recorded, learns=learns, by_own_names=by_own_names)
        walk.start()
        return walk


def record_names(record: Record) -> list[str]:
    """Return the full names of a record: its own, and its aliases, which former schemas may have it under."""
    return full_names(record.root)


def _check_names(record: Record) -> None:
    """Raise PrivacyError for a type whose name is one of those that protected values get."""
    for named in record.named.values():
        for name in full_names(named):
            if is_protected_name(name):
                raise PrivacyError(f"type {name} has a name that headrace keeps for protected values; rename it")


def _sources(column: Path, walk: "_Walk", specs: Sequence[Spec]) -> list[Path]:
    """Return the paths of a record that a column of the table holds, behind the record's spec."""
    spec = spec_of(specs, walk.name)
    return [column] if spec is None else spec.sources(column, walk.actions)


def conflict(use: ColumnUse, action: Action) -> str:
    """Return what is wrong where a column that is needed as it is gets a policy."""
    also = " or hash" if use.hashed else ""
    return (
        f"field {'.'.join(use.path)!r} has the policy {action}, and is {use.what}, which needs the value as it is; "
        f"give it the policy clear{also} in privacy.fields, or take another column"
    )


def paths_of(record: Record) -> set[str]:
    """Return the dotted paths of all fields of a record."""
    walk = _Walk(record, None, {}, {})
    walk.start()
    return {".".join(path) for path in walk.paths if not names_branch(path)}


def check_paths(policies: Policies, known: set[str]) -> None:
    """Raise PrivacyError for a path that no schema has."""
    for path, _ in policies.fields:
        if path not in known:
            raise PrivacyError(f"privacy.fields: no known schema has {path!r}; {suggest_name(path, known)}")


_Says = Callable[[Mapping[str, Any], str], list[tuple[Action, str]]]


class _Walk:
    """One way through a schema."""

    def __init__(
        self,
        record: Record,
        policies: Policies | None,
        words: dict[Path, PathPolicy],
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
        self._record, self._policies, self.name = record, policies or Policies(), str(record.root["name"])
        self._learns = learns
        self._says: _Says = self._silent
        if policies:
            self._says = policies.known_words if learns else policies.of_words
        self._recorded = recorded
        self.words = words  # what is said of paths; grows
        # Branches of unions in other schemas, of which, or of whose insides, something is said.
        self._branches = {path[: n + 1] for path in words for n, step in enumerate(path) if is_branch(step)}
        self._words_by_fields = group_by_fields(words)
        self._branches_by_fields = group_by_fields(self._branches)
        self.places = dict[Place, Action]()
        self.actions = dict[Path, Action]()  # what becomes of each path that is protected
        self.paths = set[Path]()
        self.dropped = set[Path]()
        self._positions = set[Path]()  # of branches of unions, which mean others in another schema
        self._known_as_branches = set[Path]()  # of types that are branches in another schema, and go by those names
        self._root: Any = None

    def start(self) -> None:
        """Go through the record. Raises PrivacyError."""
        learned = strictest(self._learned(frozenset([()]), []))
        self._root = self._type(self._record.root, (), frozenset([()]), learned)

    def action_of(self, path: Path) -> Action:
        """Return what becomes of a path."""
        if any(path[:length] in self.dropped for length in range(1, len(path))):
            return _DROP
        return self.actions.get(path, CLEAR)

    def protection(self, keys: KeySource) -> Protection | None:
        if not self.places:
            return None
        left = self._root or _empty(self._record.root)
        return Protection(json.dumps(TypeFolding(self._record.named).fold(left)), self.places, keys)

    def _type(
        self, schema: Any, place: Place, paths: Paths, above: Action, *, named: bool = False, is_member: bool = False
    ) -> Any | None:
        """Return the type that is left; None: nothing.

        `above`: policy of what is around it; `named`: by its path. `is_member`: it is a branch here, too.
        """
        # In another schema the type may be a branch of a union, where something is protected.
        branches: Paths = frozenset()
        if not self._by_own_names and not is_member:
            named_paths = self._branch_paths(paths, self._plain(schema))
            branches = frozenset(path for path in named_paths if self._has_branch(path))
        if branches:
            self._known_as_branches |= paths
            paths |= branches
            actions = [self.words[path].action for path in branches if path in self.words]
            above = above if named else strictest([above, *actions])
        action, says = above, self._silent if named else self._says
        while True:
            if isinstance(schema, str) and schema in self._record.named:
                schema = self._record.named[schema]
            if not isinstance(schema, dict):
                break
            if words := says(schema, _shown(paths)):
                action = strictest([action, *self._learned(paths, words)])
            if "name" in schema or not isinstance(schema["type"], dict | list):
                break
            schema = schema["type"]
        if action.kind == "drop" and place:
            self._drop(place, paths)
            return None
        if isinstance(schema, list):
            return self._union(schema, place, paths, action, named=named)
        match schema["type"] if isinstance(schema, dict) else schema:
            case "null":
                return schema
            case "record":
                fields = [self._field(one, place, paths, action) for one in schema["fields"]]
                left = [one for one in fields if one is not None]
                return {**schema, "fields": left} if left or not fields else None
            case "array":
                items = self._type(schema["items"], (*place, "element"), paths, action, named=named)
                return None if items is None else {**schema, "items": items}
            case "map":
                return self._map(schema, place, paths, action, named=named)
        if action.kind == "clear":
            return schema
        self._protect(place, paths, action)
        return protected_text(schema)

    def _map(self, schema: Any, place: Place, paths: Paths, action: Action, *, named: bool) -> Any | None:
        values = self._type(schema["values"], (*place, "value"), paths, action, named=named)
        if values is None:
            return None
        if action.kind != "clear":
            if not self._learns:
                check_keys(_shown(paths), action)
            self.places[(*place, "key")] = action
        return {**schema, "values": values}

    def _field(self, one: Mapping[str, Any], place: Place, above: Paths, policy: Action) -> Any | None:
        names = {one["name"]} if self._by_own_names else {one["name"], *one.get("aliases", ())}
        self._check_count(len(above) * len(names))
        paths = frozenset((*path, name) for path in above for name in names)
        inside = (*place, one["name"])
        self.paths |= paths
        action, named = self._decided(paths, policy, one)
        if action.kind == "drop":
            self._drop(inside, paths)
            return None
        before = len(self.places)
        found = self._type(one["type"], inside, paths, action, named=named)
        if found is None:
            return None
        rest = {key: value for key, value in one.items() if key != "default" or len(self.places) == before}
        return {**rest, "type": found}

    def _decided(self, paths: Paths, above: Action, part: Mapping[str, Any]) -> tuple[Action, bool]:
        """Return the policy of a field, or of a branch of a union, and whether its path has it."""
        named = [path for path in paths if path in self._policies.by_path]
        if not named:
            return strictest([above, *self._learned(paths, self._says(part, _shown(paths)))]), False
        words = [by_path(self._policies.by_path[path], path) for path in named]
        word = strictest_policy(words, self._policies)
        if word.action == CLEAR and not self._learns:
            self._check_clear(paths, word)
        for path in self._alike(paths):
            known = self.words.get(path)
            if word.action != CLEAR:
                self.words[path] = strictest_policy([word, known or word], self._policies)
            elif known is None or names_branch(path):
                self.words[path] = known or word
        return word.action, True

    def _check_clear(self, paths: Paths, word: PathPolicy) -> None:
        """Raise Unprotects where the table's log has a path as protected that the configuration has as clear."""
        protected = [path for path in sorted(paths) if effective(self._recorded, path) != CLEAR]
        if protected:
            path = protected[0]
            raise Unprotects(
                f"{shown_path(path)!r} of {shown_record(self.name)} would be in the clear by {word.source}: the "
                f"table's log has it as protected ({effective(self._recorded, path)}). Take the path out of "
                f"privacy.fields; or `headrace privacy release --record {self.name} --path {shown_path(path)!r}`."
            )

    def _union(self, schema: list[Any], place: Place, paths: Paths, action: Action, *, named: bool) -> Any | None:
        branches = [(self._plain(one), one) for one in schema]
        some = [plain for plain, _ in branches if plain != "null"]
        nullable: list[Any] = ["null"] if len(some) < len(schema) else []
        if action.kind != "clear" and some and not any(is_complex(plain) for plain, _ in branches):
            self._protect(place, paths, action)  # also of several: the text of the one that is set
            return [*nullable, protected_text(some[0] if len(some) == 1 else some)]
        if len(some) < 2:  # noqa: PLR2004 - null and one
            found = [
                one if plain == "null" else self._type(one, place, paths, action, named=named)
                for plain, one in branches
            ]
            return None if None in found else found
        left = self._members(branches, place, paths, action)
        if is_number_pair(some):
            return self._number_pair(left, place, paths)
        return left

    def _members(self, branches: Sequence[tuple[Any, Any]], place: Place, paths: Paths, action: Action) -> list[Any]:
        """Return what is left of the branches of a union of several. `branches`: each resolved, and as it stands."""
        present = {name for plain, _ in branches for name in branch_names(plain)}
        left, number = list[Any](), 0
        for plain, one in branches:
            if plain == "null":
                left.append(one)
                continue
            step = f"member{number}"
            number += 1
            by_name = self._branch_paths(paths, plain, present)
            positions = frozenset[Path]() if self._by_own_names else frozenset((*path, step) for path in paths)
            self._positions |= positions
            left.append(self._member(one, (*place, step), positions | by_name, action))
        return left

    def _number_pair(self, left: list[Any], place: Place, paths: Paths) -> list[Any] | None:
        """Return what is left of a union that a table has as one column of numbers, so that one policy is for both."""
        of_branches = [self.places.pop((*place, step), CLEAR) for step in ("member0", "member1")]
        action = strictest(of_branches)
        if action == CLEAR:
            return left
        if of_branches[0] != of_branches[1] and not self._learns:
            raise PrivacyError(
                f"field {_shown(paths)!r} is a union of two numbers, which are one column, and their policies differ; "
                "give the whole field a policy"
            )
        if action.kind == "drop":
            self._drop(place, paths)
            return None
        self._protect(place, paths, action)
        return [*(one for one in left if one == "null"), protected_text("long")]

    def _member(self, schema: Any, place: Place, paths: Paths, policy: Action) -> Any:
        """Return a branch of a union; one of which nothing is left keeps its position."""
        self.paths |= paths
        action, named = self._decided(paths, policy, {})
        found = None
        if action.kind == "drop":
            self._drop(place, paths)
        else:
            found = self._type(schema, place, paths, action, named=named, is_member=True)
        return _empty(self._plain(schema)) if found is None else found

    def _learned(self, paths: Paths, of_schema: list[tuple[Action, str]]) -> list[Action]:
        """Return what is said of a field, here and in other schemas, and remember it by all its names."""
        alike = self._alike(paths)
        words = [
            *(PathPolicy(*word) for word in of_schema),
            *(self.words[path] for path in alike if path in self.words),
            *(self.words[other] for path in alike for other in wider_paths(path, self._words_by_fields)),
        ]
        if not words:
            return []
        self.words |= dict.fromkeys(alike, strictest_policy(words, self._policies))
        return [word.action for word in words]

    def _check_count(self, more: int) -> None:
        """Raise TooManyPaths where so many more paths are too many."""
        if len(self.paths) + more > _NAMES_MAX:
            raise TooManyPaths(
                f"the fields of record {self.name} have more than {_NAMES_MAX:,} paths by their aliases and the unions "
                "around them; take aliases out"
            )

    def _branch_paths(self, paths: Paths, plain: Any, present: Collection[str] = ()) -> Paths:
        """Return the paths of a branch by its names, which it has in each schema, at whatever position.

        A number fills the column of another type of number, and text that of bytes. So it has their names, too, where
        no other of these is among the branches that are `present`.
        """
        if self._by_own_names:
            return frozenset((*path, f"<{own_name(plain)}>") for path in paths)
        names = branch_names(plain)
        alike = {other for name in names for other in PROMOTED.get(name, ())}
        if (alike - names).isdisjoint(present):
            names |= alike
        self._check_count(len(paths) * len(names))
        return frozenset((*path, f"<{name}>") for path in paths for name in names)

    def _has_branch(self, path: Path) -> bool:
        """Return whether something is said of a branch of a union in another schema, or of its insides."""
        return path in self._branches or any(wider_paths(path, self._branches_by_fields))

    def _alike(self, paths: Paths) -> list[Path]:
        """Return the paths that mean the same in another schema: none goes by the position of a branch.

        Nor does one go into a branch without its name, where that is known: it would mean all branches.
        """
        return [path for path in paths if not any(self._is_vague(path, length) for length in range(len(path)))]

    def _is_vague(self, path: Path, length: int) -> bool:
        """Return whether the step behind so many is to one of several branches, and does not name it."""
        if path[: length + 1] in self._positions:
            return True
        return not is_branch(path[length]) and path[:length] in self._known_as_branches

    def _protect(self, place: Place, paths: Paths, action: Action) -> None:
        self.places[place] = action
        self._act(paths, action)

    def _drop(self, place: Place, paths: Paths) -> None:
        self.places[place] = _DROP
        self.dropped |= paths
        self._act(paths, _DROP)

    def _act(self, paths: Paths, action: Action) -> None:
        for path in paths:
            for length in range(1, len(path) + 1):
                self.actions[path[:length]] = strictest([action, self.actions.get(path[:length], action)])

    def _plain(self, schema: Any) -> Any:
        while isinstance(schema, dict) and "name" not in schema and isinstance(schema["type"], dict | list):
            schema = schema["type"]
        return self._record.named.get(schema, schema) if isinstance(schema, str) else schema

    @staticmethod
    def _silent(*_: Any) -> list[tuple[Action, str]]:
        return []


def _shown(paths: Paths) -> str:
    path = min((path for path in paths if not names_branch(path)), default=min(paths))
    return ".".join(path) or "the record itself"


def _empty(schema: Any) -> dict[str, Any]:
    """Return a record without fields, in place of a type; no table has a column for it."""
    name = schema.get("name") if isinstance(schema, dict) else None
    # The branches of a union differ by their names.
    return {"type": "record", "name": name or f"headrace.dropped.{type_name(schema)}", "fields": []}
