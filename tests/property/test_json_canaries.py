"""No value that a JSON object has in a protected place stands in its row, under whatever spelling and of whatever type.

Declarations, policies and objects are random; the objects have known secrets at protected paths, beside them under
other names, and in place of what a path leads through. Rows are read by a later declaration, too, that has fewer
columns. Members of texts are held against an oracle that protects them an object at a time in Python.
"""

import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, reject, settings, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.privacy.column_protection import MASK
from headrace.writer.privacy.json_text import protect_members
from headrace.writer.privacy.keyring import KeySource
from headrace.writer.privacy.path_policies import Path
from headrace.writer.privacy.policy import Action, PrivacyError
from tests.support.canaries import STEM
from tests.support.example_counts import share
from tests.support.json_rows import HASH_KEY, declared_text, privacy_of, protect, rows_of, write_keyring

NAMES = ("email", "user", "Card", "größe", "rest", "items")
SCALARS = ("string", "long", "json")


@pytest.fixture(scope="module", name="keys")
def _keys(tmp_path_factory: pytest.TempPathFactory) -> KeySource:
    return write_keyring(tmp_path_factory.mktemp("keys"))


def has_map(kind: Any) -> bool:
    if isinstance(kind, list):
        return has_map(kind[0])
    return isinstance(kind, dict) and ("*" in kind or any(has_map(member) for member in kind.values()))


def paths_in(kind: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the paths of all members, and what they lead to."""
    if isinstance(kind, list):
        yield from paths_in(kind[0], path)
    elif isinstance(kind, dict) and "*" in kind:
        yield from paths_in(kind["*"], path)
    elif isinstance(kind, dict):
        for name, member in kind.items():
            yield (*path, name), member
            yield from paths_in(member, (*path, name))


class Pipeline:
    """Draws a declaration, policies, a later declaration, and objects."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.secrets = 0
        # One column stays, whatever is dropped.
        self.declared = {"id": "long", **self._object(2)}
        self.later = self._reduce(self.declared)
        self.policies = dict[Path, Any]()
        kinds = [pair for pair in paths_in(self.declared, ()) if pair[0] != ("id",)]
        for path, kind in draw(
            st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique_by=lambda pair: pair[0])
        ):
            inside = draw(st.sampled_from(((), ("email",), ("user", "email")))) if kind == "json" else ()
            policies = ["hash", "encrypt", "drop", *([] if has_map(kind) else [{"mask": 3}])]
            self.policies[(*path, *inside)] = draw(st.sampled_from(policies))

    @property
    def fields(self) -> dict[str, Any]:
        return {".".join(path): policy for path, policy in self.policies.items()}

    def value(self, declared: Any, later: Any, path: Path) -> dict[str, Any]:
        """Return an object. `later`: how it is read afterwards; None: it has no column by then."""
        members: dict[str, Any] = {}
        for name, kind in declared.items():
            inner = (*path, name)
            later_kind = later.get(name) if isinstance(later, dict) else later
            ways = ["as declared", "missing"]
            if self._is_secret(inner) or self._has_secrets(inner):
                ways += ["other spelling", "other type"]
            way = self._draw(st.sampled_from(ways))
            if way == "missing":
                continue
            spelled = self._spell(name) if way == "other spelling" else name
            members[spelled] = self._other_type(kind) if way == "other type" else self._value(kind, later_kind, inner)
        if later != "json" and (self._is_secret(path) or self._has_secrets(path)):
            members[self._draw(st.sampled_from(["mail", "EMAILS", "x"]))] = self._secret()
        return members

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        return {name: self._kind(depth) for name in names}

    def _kind(self, depth: int) -> Any:
        kinds = [*SCALARS, *(("list", "map", "object", "object") if depth else ())]
        match self._draw(st.sampled_from(kinds)):
            case "list":
                return [self._kind(depth - 1)]
            case "map":
                return {"*": self._kind(depth - 1)}
            case "object":
                return self._object(depth - 1)
            case scalar:
                return scalar

    def _reduce(self, declared: dict[str, Any]) -> dict[str, Any]:
        """Return a later declaration: columns are gone, objects are JSON texts."""
        later: dict[str, Any] = {}
        for name, kind in declared.items():
            is_object = isinstance(kind, dict) and "*" not in kind
            ways = ["same", "gone", *(["inside"] if is_object else []), *([] if has_map(kind) else ["json"])]
            # The path of the column of undeclared members would mean this member, which has gone.
            if name in ("rest", "id"):
                ways = ["same"]
            match self._draw(st.sampled_from(ways)):
                case "same":
                    later[name] = kind
                case "inside":
                    later[name] = self._reduce(kind)
                case "json":
                    later[name] = "json"
        return later or {"other": "string"}

    def _value(self, kind: Any, later: Any, path: Path) -> Any:
        later_inside = "json" if later == "json" else None
        if isinstance(kind, list):
            inside = later[0] if isinstance(later, list) else later_inside
            return [self._value(kind[0], inside, path) for _ in range(self._draw(st.integers(0, 2)))]
        if isinstance(kind, dict) and "*" in kind:
            key = self._secret() if self._is_secret(path) else "k"
            return {key: self._value(kind["*"], later["*"] if isinstance(later, dict) else later_inside, path)}
        if isinstance(kind, dict):
            return self.value(kind, later, path)
        if self._is_secret(path):
            return self._secret()
        if kind == "json" and self._has_secrets(path):
            inside = [inner[len(path) :] for inner in self.policies if inner[: len(path)] == path]
            return self._text(self._draw(st.sampled_from(inside)))
        return {"string": "fine", "long": 5, "json": {"fine": [1.5, None]}}[kind]

    def _text(self, steps: Path) -> Any:
        """Return what a text has with a secret behind these steps, or in place of what they lead through."""
        if not steps:
            return self._draw(st.sampled_from([self._secret(), [self._secret()], {"q": [self._secret()]}]))
        inner = self._text(steps[1:])
        around = [{self._spell(steps[0]): inner}, [1, {steps[0]: inner, "a": 1}], [[{steps[0]: inner}]], self._secret()]
        return self._draw(st.sampled_from(around))

    def _other_type(self, kind: Any) -> Any:
        values = [self._secret(), [self._secret()], [[self._secret()]]]
        # An object is the type of these.
        if not isinstance(kind, dict):
            values.append({"q": self._secret()} if kind in ("string", "long") else self._secret())
        return self._draw(st.sampled_from(values))

    def _spell(self, name: str) -> str:
        return self._draw(st.sampled_from([name.upper(), name.swapcase(), name.capitalize(), name.lower()]))

    def _is_secret(self, path: Path) -> bool:
        return any(path[: len(inner)] == inner for inner in self.policies)

    def _has_secrets(self, path: Path) -> bool:
        return any(inner[: len(path)] == path for inner in self.policies)

    def _secret(self) -> str:
        self.secrets += 1
        return f"{STEM}-{self.secrets}"


@settings(max_examples=share(400))
@given(data=st.data())
def test_no_secret_of_an_object_stands_in_its_row(keys: KeySource, data: st.DataObject) -> None:
    pipeline = Pipeline(data.draw)
    values = [pipeline.value(pipeline.declared, pipeline.later, ()) for _ in range(3)]
    text = declared_text(pipeline.declared)
    privacy = privacy_of(keys, pipeline.fields)
    news = privacy.with_schemas([avro.parse(text)]).news
    later = privacy.with_log_policies(news)
    for declared, policies in ((pipeline.declared, privacy), (pipeline.later, later)):
        rows = rows_of(declared, values)
        try:
            left = protect(declared_text(declared), rows, policies).to_pylist()
        except PrivacyError as error:
            assert "is JSON that becomes one value" in str(error)  # noqa: PT017 - the others are rows
            reject()
        assert STEM not in str(left), (declared, rows)


# --- members of texts ------------------------------------------------------------------------------------------------

STEPS = ("a", "B", "ä", "")
NUMBERS = ("0", "-1.50", "1e400", "12345678901234567890123", "1.0E-3")


class Number(str):
    """A number as its text has it."""

    __slots__ = ()


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS).map(Number), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from((*STEPS, "b", "c")), inner, max_size=4)
    ),
    max_leaves=12,
)


def write_json(value: Any, draw: st.DrawFn) -> str:
    """Return a text with blanks and escapes of any kind."""
    blank = draw(st.sampled_from(["", "", " ", "\n\t"]))
    match value:
        case Number():
            return str(value)
        case str():
            return json.dumps(value, ensure_ascii=draw(st.booleans()))
        case dict():
            members = [
                f"{blank}{write_json(name, draw)}{blank}:{blank}{write_json(member, draw)}"
                for name, member in value.items()
            ]
            return f"{{{f'{blank},'.join(members)}{blank}}}"
        case list():
            return f"[{f'{blank},{blank}'.join(write_json(item, draw) for item in value)}{blank}]"
    return json.dumps(value)


def read_json(text: str) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number)


ACTIONS = (Action("hash"), Action("drop"), Action("mask", 1))
GONE = object()


def protect_scalar(text: str, action: Action) -> Any:
    match action.kind:
        case "drop":
            return GONE
        case "hash":
            return hmac.digest(HASH_KEY, text.encode(), "sha256").hex()
    return MASK + text[-action.keep :] if len(text) > action.keep > 0 else MASK


def protect_value(value: Any, actions: Mapping[Path, Action]) -> Any:
    """Return what is left of a value. `actions`: by the steps that lead from it."""
    if () in actions:
        if value is None and actions[()].kind != "drop":
            return None
        if isinstance(value, dict | list):
            # Its text is not known here.
            return GONE if actions[()].kind == "drop" else actions[()]
        text = json.dumps(value) if value is None or isinstance(value, bool) else value
        return protect_scalar(text, actions[()])
    if not actions or value is None:
        return value
    if isinstance(value, list):
        items = [protect_value(item, actions) for item in value]
        return [None if item is GONE else item for item in items]
    if not isinstance(value, dict):
        # The strictest of what may be here, and no end of it.
        rank = ("drop", "mask", "hash")
        kind = min((action.kind for action in actions.values()), key=rank.index)
        return protect_scalar(json.dumps(value) if isinstance(value, bool) else value, Action(kind))
    left = {}
    for name, member in value.items():
        inside: dict[Path, Action] = {}
        for path, action in actions.items():
            if path[0].casefold() == name.casefold():
                inside[path[1:]] = min(action, inside.get(path[1:], action), key=lambda known: known.rank)
        kept = protect_value(member, inside)
        if kept is not GONE:
            left[name] = kept
    return left


def check_left(left: Any, expected: Any) -> None:
    if isinstance(expected, Action):
        assert left == MASK if expected.kind == "mask" else len(left) == 64
    elif isinstance(expected, dict):
        assert list(left) == list(expected)
        for name, member in expected.items():
            check_left(left[name], member)
    elif isinstance(expected, list):
        assert len(left) == len(expected)
        for item, expected_item in zip(left, expected, strict=True):
            check_left(item, expected_item)
    else:
        assert (left, type(left)) == (expected, type(expected))


def protect_texts(texts: pa.StringArray, action: Action) -> pa.StringArray:
    return pa.array([protect_scalar(text, action) for text in texts.to_pylist()], pa.string())


@settings(max_examples=share(400))
@given(data=st.data())
def test_members_of_texts_are_protected_as_by_the_oracle(data: st.DataObject) -> None:
    paths = st.lists(st.sampled_from(STEPS), min_size=1, max_size=3).map(tuple)
    drawn: dict[Path, Action] = data.draw(st.dictionaries(paths, st.sampled_from(ACTIONS), min_size=1, max_size=4))
    # A start refuses paths in what becomes one value.
    actions = {
        path: action for path, action in drawn.items() if not any(path[:length] in drawn for length in range(len(path)))
    }
    values = data.draw(st.lists(JSON_VALUES, min_size=1, max_size=4))
    texts = [write_json(value, data.draw) for value in values]
    left = protect_members(pa.array([*texts, None]), actions, protect_texts).to_pylist()
    assert left.pop() is None
    for text, value, left_text in zip(texts, values, left, strict=True):
        assert read_json(text) == value
        expected = protect_value(value, actions)
        if expected is GONE:
            assert left_text is None
            continue
        check_left(read_json(left_text), expected)
        if expected == value:
            assert left_text == text
