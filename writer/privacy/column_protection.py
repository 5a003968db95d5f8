"""Protects Arrow columns: drops, hashes, masks and encrypts what lies at some places in them.

A place is a column and the way into it: `("user", "email")`, `("tags", "element")`, `("labels", "key")`,
`("labels", "value", "x")`. What is protected becomes text; null stays null.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous
from writer.privacy.canonical_values import value_bytes, value_text
from writer.privacy.encryption import encrypted
from writer.privacy.hashing import hashed
from writer.privacy.keyring import Keyring, KeySource, keyring
from writer.privacy.policy import Action, PrivacyError

Place = tuple[str, ...]
Places = Mapping[Place, Action]
Inside = Callable[[pa.Array, str, "npt.NDArray[np.int64] | None"], pa.Array | None]
MASK = "****"


@dataclass(frozen=True)
class Protection:
    """What is protected of the rows of one schema."""

    text: str  # the schema of the rows that are left
    places: Places
    keys: KeySource

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return rows of the protected schema. Raises ConfigError where this process lacks a key."""
        found, ring = dict[str, pa.Array | pa.ChunkedArray](), keyring(self.keys) if self.keys.keys else Keyring()
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            values = column
            if lies_beside((name,), self.places):
                values = protected(contiguous(column), (name,), self.places, self.keys, ring)
            if values is not None:
                found[name] = values
        return pa.table(found)


def lies_beside(place: Place, places: Places) -> bool:
    """Return whether something at a place, or inside it, is protected."""
    return any(at[: len(place)] == place for at in places)


def protected(values: pa.Array, place: Place, places: Places, keys: KeySource, ring: Keyring) -> pa.Array | None:
    """Protect what lies at a place, and inside it. None: nothing is left."""
    if (action := places.get(place)) is not None:
        return None if action.kind == "drop" else scalars(values, action, keys, ring)
    if not pa.types.is_nested(values.type) or not lies_beside(place, places):
        return values
    return rebuilt(values, lambda child, step, _: protected(child, (*place, step), places, keys, ring))


def rebuilt(values: pa.Array, change: Inside) -> pa.Array | None:
    """Return nested values whose children are changed, null where they stand in a null. None: nothing is left.

    `change` gets each child, the step to it, and of which value each of its own is a part; None: they are one to one.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        children = {
            member.name: change(child, member.name, None) for member, child in zip(kind, values.flatten(), strict=True)
        }
        left = {name: child for name, child in children.items() if child is not None}
        fields = [pa.field(name, child.type) for name, child in left.items()]
        return pa.StructArray.from_arrays(list(left.values()), fields=fields, mask=values.is_null()) if left else None
    if values.offset or len(values.values) != np.diff(values.offsets).sum():
        values = values.take(pa.arange(0, len(values)))  # children and offsets begin at 0, and end together
    parents = np.repeat(np.arange(len(values)), np.diff(values.offsets))
    if pa.types.is_map(kind):
        names, items = change(values.keys, "key", parents), change(values.items, "value", parents)
        if names is None or items is None:
            return None
        return pa.MapArray.from_arrays(
            values.offsets, names, items, type=pa.map_(names.type, items.type), mask=values.is_null()
        )
    if (items := change(values.values, "element", parents)) is None:
        return None
    kind = pa.list_(pa.field("element", items.type))
    return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())


def scalars(values: pa.Array, action: Action, keys: KeySource, ring: Keyring) -> pa.StringArray:
    """Hash, mask or encrypt values that hold no others, or that are a union of such."""
    match action.kind:
        case "hash":
            assert keys.hash is not None, "a start checks that there is the key"
            return hashed(value_bytes(values), ring.hash_keys[keys.hash.id])
        case "encrypt":
            assert keys.encrypt is not None, "a start checks that there is the key"
            return encrypted(value_bytes(values), keys.encrypt.id, ring.encryption_keys[keys.encrypt.id])
    assert action.kind == "mask", f"{action.kind} changes no values"
    return _masked(value_text(values), action.keep)


def _masked(texts: pa.StringArray, keep: int) -> pa.StringArray:
    """Keep so many characters at the end of what is longer."""
    if keep == 0:
        return pc.if_else(texts.is_valid(), MASK, pa.scalar(None, pa.string()))
    ends = pc.utf8_slice_codeunits(texts, -keep)
    longer = pc.greater(pc.utf8_length(texts), keep)
    return pc.binary_join_element_wise(MASK, pc.if_else(longer, ends, pc.if_else(texts.is_valid(), "", ends)), "")


def leaves(kind: pa.DataType, place: Place, action: Action) -> dict[Place, Action]:
    """Return the places of all values inside a type, which one policy protects. Raises PrivacyError."""
    if action.kind in ("drop", "clear"):
        return {} if action.kind == "clear" else {place: action}
    if pa.types.is_struct(kind):
        return {at: one for member in kind for at, one in leaves(member.type, (*place, member.name), action).items()}
    if pa.types.is_list(kind):
        return leaves(kind.value_type, (*place, "element"), action)
    if pa.types.is_map(kind):
        check_keys(".".join(place), action)
        return {(*place, "key"): action, **leaves(kind.item_type, (*place, "value"), action)}
    return {place: action}


def protected_type(kind: pa.DataType, place: Place, places: Places) -> pa.DataType:
    """Return the type that values of a place have once they are protected, where none is dropped."""
    if place in places:
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, protected_type(one.type, (*place, one.name), places)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", protected_type(kind.value_type, (*place, "element"), places)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, protected_type(kind.item_type, (*place, "value"), places))
    return kind


def check_keys(at: str, action: Action) -> None:
    """Raise PrivacyError for a mask over a map: two keys may have one mask."""
    if action.kind == "mask":
        raise PrivacyError(f"field {at!r} is a map, of whose keys two may have one mask; hash, encrypt or drop it")
