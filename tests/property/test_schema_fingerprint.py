"""A schema's one spelling, on schemas that evolve at random and are spelled at random."""

import json
import random
from typing import Any

from fastavro.schema import to_parsing_canonical_form
from hypothesis import given, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.avro.fingerprint import canonical_text, schema_fingerprint
from tests.support.schema_producer import Producer

SEEDS = st.integers(0, 2**32)


def spell_schema(schema: Any, rng: random.Random, space: str = "") -> Any:
    """Write a schema as somebody else would who means the same."""
    if isinstance(schema, list):
        return [spell_schema(branch, rng, space) for branch in schema]
    if isinstance(schema, str):
        return rng.choice([schema, {"type": schema}, {"type": schema, "avro.java.string": "String"}])
    made = dict(schema)
    if "name" in made and rng.random() < 0.5:
        made["namespace"] = space
    for key in ("items", "values"):
        if key in made:
            made[key] = spell_schema(made[key], rng, space)
    if "fields" in made:
        made["fields"] = [
            shuffle_keys({**field, "type": spell_schema(field["type"], rng, space), "order": "ignore"}, rng)
            for field in made["fields"]
        ]
    made |= {"doc": "Somebody's."} if rng.random() < 0.3 else {}
    return shuffle_keys(made, rng)


def shuffle_keys(made: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    return dict(rng.sample(list(made.items()), len(made)))


@given(SEEDS, st.integers(0, 5))
def test_every_spelling_of_a_schema_has_one_fingerprint(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    producer = Producer(rng)
    for _ in range(steps):
        producer.evolve()
    text = producer.writes()
    other = json.dumps(spell_schema(json.loads(text), rng), indent=rng.choice([None, 2]))
    assert canonical_text(other) == canonical_text(text)
    assert schema_fingerprint(other) == schema_fingerprint(text)
    assert canonical_text(canonical_text(text)) == canonical_text(text)
    assert avro.table_fields(avro.parse(canonical_text(text))) == avro.table_fields(avro.parse(text))


@given(SEEDS, st.integers(1, 5))
def test_schemas_that_differ_have_different_fingerprints(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    producer = Producer(rng)
    texts = [producer.writes()]
    for _ in range(steps):
        producer.evolve()
        texts.append(producer.writes())
    assert len({schema_fingerprint(text) for text in texts}) == len(set(texts))


@given(SEEDS, st.integers(0, 5))
def test_a_fingerprint_keeps_all_that_the_canonical_form_of_avro_keeps(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    producer = Producer(rng)
    for _ in range(steps):
        producer.evolve()
    text = producer.writes()
    assert to_parsing_canonical_form(json.loads(canonical_text(text))) == to_parsing_canonical_form(json.loads(text))
