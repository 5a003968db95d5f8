"""Fields decrypt to what producers encrypted, wherever they lie; a value that was changed fails its own row alone."""

from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.privacy.field_decryption import DataKey, Decryption, EncryptedFields, Kek
from headrace.writer.privacy.keyring import KeyringPlace, WrapSource
from tests.servers.csfle import CsfleRegistry
from tests.support.example_counts import share
from tests.support.field_encryption import SECRET, SIZES, Producer

KIND = pa.struct([("a", pa.string()), ("b", pa.list_(pa.field("element", pa.binary())))])
SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.map_(pa.string(), KIND)), ("y", pa.string())])
PLACES = (("x", "value", "a"), ("x", "value", "b", "element"), ("y",))
TEXT, BYTES = st.none() | st.text(max_size=5), st.none() | st.binary(max_size=5)
INNER = st.none() | st.fixed_dictionaries({"a": TEXT, "b": st.none() | st.lists(BYTES, max_size=3)})
ROWS = st.lists(
    st.fixed_dictionaries(
        {"x": st.none() | st.dictionaries(st.sampled_from("kl"), INNER, max_size=2), "y": TEXT, "breaks": st.booleans()}
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _secret() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_SECRET", SECRET)
        yield


def change_value(value: Any, change: Any) -> Any:
    """Change each text and bytes of a row's map or text, but its keys."""
    if isinstance(value, dict) and set(value) == {"a", "b"}:
        inner = None if value["b"] is None else [change_value(one, change) for one in value["b"]]
        return {"a": change_value(value["a"], change), "b": inner}
    if isinstance(value, dict):
        return {name: change_value(one, change) for name, one in value.items()}
    return value if value is None else change(value)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    maps = [None if row["x"] is None else list(row["x"].items()) for row in rows]
    return pa.table(
        [pa.array(range(len(rows))), pa.array(maps, SCHEMA.field("x").type), pa.array([row["y"] for row in rows])],
        schema=SCHEMA,
    )


def break_value(value: Any) -> Any:
    """Not what any key encrypts."""
    return b64encode(b"\0\0\0\0\1" + value.encode()).decode() if isinstance(value, str) else b"\0\0\0\0\1" + value


@settings(max_examples=share(120), deadline=None)
@given(rows=ROWS, algorithm=st.sampled_from(sorted(SIZES)), versions=st.booleans(), data=st.data())
def test_rows_decrypt_or_fail_alone(rows: list[Any], algorithm: str, versions: bool, data: st.DataObject) -> None:
    producers = [Producer(CsfleRegistry(), subject) for subject in ("one", "two")]
    keys = list[DataKey]()
    sealed, breaking = list[dict[str, Any]](), set[int]()
    for at, row in enumerate(rows):
        producer = data.draw(st.sampled_from(producers))
        version = data.draw(st.integers(1, 3)) if versions else None

        def seal(value: Any, producer: Producer = producer, version: int | None = version) -> Any:
            return producer.encrypt(value, algorithm, version)

        change = break_value if row["breaks"] else seal
        sealed.append({name: change_value(row[name], change) for name in ("x", "y")})
        if row["breaks"] and sealed[-1] != {name: row[name] for name in ("x", "y")}:
            breaking.add(at)
    for producer in producers:
        keys += [DataKey(dek["subject"], dek["version"], dek["encryptedKeyMaterial"]) for dek in producer.registry.deks]
    kek = Kek("shop-kek", "local-kms", "shop", WrapSource(KeyringPlace(env="SHOP_SECRET")))
    rule = EncryptedFields(PLACES, kek, algorithm, versions, ("one", "two"), tuple(keys))
    skip = data.draw(st.integers(0, len(rows) - 1))
    given_rows = table(sealed).slice(skip, data.draw(st.integers(1, len(rows))))
    found = Decryption((rule,)).decrypt(given_rows)
    there = given_rows["n"].to_pylist()
    assert {there[at] for at in found.failures} == breaking & set(there)
    whole = [one for one in found.rows.to_pylist() if one["n"] not in breaking]
    assert whole == [one for one in table(rows).to_pylist() if one["n"] in there and one["n"] not in breaking]
