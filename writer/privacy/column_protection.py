"""Protects Arrow columns: drops, hashes, masks and encrypts the values at some paths in them.

A path is a column and the way into it: `("user", "email")`, `("tags", "element")`, `("labels", "key")`,
`("labels", "value", "x")`. Inside a JSON text its steps are names of members: `("payload", "email")`. Values that are
protected become text; null stays null.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous
from headrace.writer.privacy.encryption import encrypt_values
from headrace.writer.privacy.hashing import hash_values
from headrace.writer.privacy.json_text import protect_members
from headrace.writer.privacy.keyring import Keyring, KeySource, open_keyring
from headrace.writer.privacy.policy import Action, PrivacyError

ColumnPath = tuple[str, ...]
ColumnActions = Mapping[ColumnPath, Action]
Parents = npt.NDArray[np.int64]
# Gets the child of nested values, the step to it, and the parent of each of its values; None: they are one to one.
ChangeChild = Callable[[pa.Array, str, "Parents | None"], pa.Array | None]
MASK = "****"


@dataclass(frozen=True)
class Protection:
    """What is protected of the rows of one schema."""

    # The schema of the rows that are left.
    text: str
    actions: ColumnActions
    keys: KeySource

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return rows of the protected schema. Raises ConfigError where this process lacks a key."""
        keyring = open_keyring(self.keys) if self.keys.keys else Keyring()
        columns = dict[str, pa.Array | pa.ChunkedArray]()
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            values = column
            if is_protected_within((name,), self.actions):
                values = protect_values(contiguous(column), (name,), self.actions, self.keys, keyring)
            if values is not None:
                columns[name] = values
        return pa.table(columns)


def is_protected_within(path: ColumnPath, actions: ColumnActions) -> bool:
    """Return whether something at a path, or inside it, is protected."""
    return any(protected_path[: len(path)] == path for protected_path in actions)


def protect_values(
    values: pa.Array, path: ColumnPath, actions: ColumnActions, keys: KeySource, keyring: Keyring
) -> pa.Array | None:
    """Protect the values of a path, and those inside them. None: nothing is left."""
    action = actions.get(path)
    if action is not None and action.kind == "drop":
        return None
    if action is not None:
        return protect_scalars(values, action, keys, keyring)
    if not is_protected_within(path, actions):
        return values
    if not pa.types.is_nested(values.type):
        members = {inner[len(path) :]: action for inner, action in actions.items() if inner[: len(path)] == path}
        return protect_members(values, members, partial(protect_scalars, keys=keys, keyring=keyring))
    return change_children(values, lambda child, step, _: protect_values(child, (*path, step), actions, keys, keyring))


def change_children(values: pa.Array, change: ChangeChild) -> pa.Array | None:
    """Return nested values whose children are changed, null where their parent is null. None: nothing is left.

    `change` gets the children of lists and maps flat: [[1, 2], null, [3]] → 1, 2, 3 of the parents 0, 0, 2.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        return _change_members(values, change)
    if values.offset or len(values.values) != np.diff(values.offsets).sum():
        # A copy whose children and offsets begin at 0, and end together.
        values = values.take(pa.arange(0, len(values)))
    parents = np.repeat(np.arange(len(values)), np.diff(values.offsets))
    if pa.types.is_map(kind):
        names = change(values.keys, "key", parents)
        items = change(values.items, "value", parents)
        if names is None or items is None:
            return None
        return pa.MapArray.from_arrays(
            values.offsets, names, items, type=pa.map_(names.type, items.type), mask=values.is_null()
        )
    items = change(values.values, "element", parents)
    if items is None:
        return None
    kind = pa.list_(pa.field("element", items.type))
    return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())


def _change_members(values: pa.StructArray, change: ChangeChild) -> pa.StructArray | None:
    members = dict[str, pa.Array]()
    for member, child in zip(values.type, values.flatten(), strict=True):
        changed = change(child, member.name, None)
        if changed is not None:
            members[member.name] = changed
    if not members:
        return None
    fields = [pa.field(name, child.type) for name, child in members.items()]
    return pa.StructArray.from_arrays(list(members.values()), fields=fields, mask=values.is_null())


def protect_scalars(values: pa.Array, action: Action, keys: KeySource, keyring: Keyring) -> pa.StringArray:
    """Hash, mask or encrypt values that hold no others, or that are a union of such."""
    match action.kind:
        case "hash":
            assert keys.hash is not None, "a start checks that there is the key"
            return hash_values(value_bytes(values), keyring.hash_keys[keys.hash.id])
        case "encrypt":
            assert keys.encrypt is not None, "a start checks that there is the key"
            return encrypt_values(value_bytes(values), keys.encrypt.id, keyring.encryption_keys[keys.encrypt.id])
    assert action.kind == "mask", f"{action.kind} changes no values"
    return _mask_texts(value_text(values), action.keep)


def value_bytes(values: pa.Array) -> pa.BinaryArray:
    """Return the bytes that stand for scalars where they are hashed or encrypted; null stays null.

    They depend on the value alone, not on its width, the machine or the release: bytes are themselves, and all others
    are the UTF-8 of `value_text`. A union, which is a struct of its members, gives the one set.
    """
    kind = values.type
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_struct(kind):
        return pc.coalesce(*(value_bytes(member) for member in values.flatten()))
    return value_text(values).cast(pa.binary())


def value_text(values: pa.Array) -> pa.StringArray:
    """Return the text of scalars; null stays null. Bytes have none: theirs is empty.

    Integers are decimal, booleans `true` and `false`, doubles and floats the shortest decimal that reads back as the
    same double, decimals plain with all digits of their scale (`1.50`), dates `2026-11-20`, instants `2026-11-20
    05:00:00.000000` in UTC. docs/PRIVACY.md has test vectors.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_struct(kind):
        return pc.coalesce(*(value_text(member) for member in values.flatten()))
    if pa.types.is_binary(kind):
        return pc.if_else(values.is_valid(), "", pa.scalar(None, pa.string()))
    if pa.types.is_decimal(kind):
        return _plain_decimals(values)
    if pa.types.is_floating(kind):
        return values.cast(pa.float64()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us")).cast(pa.string())
    return values.cast(pa.string())


def _plain_decimals(values: pa.Decimal128Array) -> pa.StringArray:
    """Write decimals without an exponent: digits of the unscaled number, and a point among them.

    With scale 2: -0.05, 1.5, null (unscaled -5, 150, null) → "-0.05", "1.50", null.
    """
    scale = values.type.scale
    digits = pa.decimal128(38, 0)
    unscaled = pa.Array.from_buffers(digits, len(values), values.buffers(), offset=values.offset)
    if scale == 0:
        return unscaled.cast(pa.string())
    padded = pc.utf8_lpad(pc.abs(unscaled).cast(pa.string()), scale + 1, "0")
    integer_part = pc.utf8_slice_codeunits(padded, 0, -scale)
    fraction = pc.utf8_slice_codeunits(padded, -scale)
    sign = pc.if_else(pc.less(unscaled, pa.scalar(0, digits)), "-", "")
    signed_integer = pc.binary_join_element_wise(sign, integer_part, "")
    return pc.binary_join_element_wise(signed_integer, fraction, ".")


def _mask_texts(texts: pa.StringArray, keep: int) -> pa.StringArray:
    """Keep so many characters at the end of longer texts.

    With `keep` 2: "secret", "ab", null → "****et", "****", null.
    """
    if keep == 0:
        return pc.if_else(texts.is_valid(), MASK, pa.scalar(None, pa.string()))
    endings = pc.utf8_slice_codeunits(texts, -keep)
    is_longer = pc.greater(pc.utf8_length(texts), keep)
    empty_or_null = pc.if_else(texts.is_valid(), "", endings)
    return pc.binary_join_element_wise(MASK, pc.if_else(is_longer, endings, empty_or_null), "")


def leaf_actions(kind: pa.DataType, path: ColumnPath, action: Action) -> dict[ColumnPath, Action]:
    """Return the paths of all values inside a type, which one policy protects. Raises PrivacyError."""
    if action.kind == "clear":
        return {}
    if action.kind == "drop":
        return {path: action}
    if pa.types.is_struct(kind):
        actions = dict[ColumnPath, Action]()
        for member in kind:
            actions |= leaf_actions(member.type, (*path, member.name), action)
        return actions
    if pa.types.is_list(kind):
        return leaf_actions(kind.value_type, (*path, "element"), action)
    if pa.types.is_map(kind):
        check_map_keys(".".join(path), action)
        return {(*path, "key"): action, **leaf_actions(kind.item_type, (*path, "value"), action)}
    return {path: action}


def protected_type(kind: pa.DataType, path: ColumnPath, actions: ColumnActions) -> pa.DataType:
    """Return the type that values of a path have once they are protected, where none is dropped."""
    if path in actions:
        return pa.string()
    if pa.types.is_struct(kind):
        members = [(member.name, protected_type(member.type, (*path, member.name), actions)) for member in kind]
        return pa.struct(members)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", protected_type(kind.value_type, (*path, "element"), actions)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, protected_type(kind.item_type, (*path, "value"), actions))
    return kind


def check_map_keys(field: str, action: Action) -> None:
    """Raise PrivacyError for a mask over a map: two keys may have one mask."""
    if action.kind == "mask":
        raise PrivacyError(f"field {field!r} is a map, of whose keys two may have one mask; hash, encrypt or drop it")
