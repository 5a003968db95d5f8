"""The poisoned data set of the bench: always the same events, and each of them one that no decoder reads."""

import numpy as np
import pyarrow as pa

from headrace.bench.data.dataset import dataset
from headrace.bench.features.failed_records import SHARE, DamagedDataSet, damage_mask
from headrace.writer.avro import schema
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.decoding.decode import decode

CLEAN = dataset("200B")
DATA = DamagedDataSet(CLEAN.name, CLEAN.about, CLEAN.fields)


def test_the_same_events_are_damaged_wherever_one_begins():
    mask = damage_mask(0, 200_000)
    assert np.array_equal(mask[70_000:90_000], damage_mask(70_000, 20_000))
    assert 0.8 * SHARE < mask.mean() < 1.2 * SHARE
    assert np.unique(np.flatnonzero(mask) % 4).size == 4, "scattered"
    assert DATA.encode(150, 400)[50:150].equals(DATA.encode(200, 100))


def test_each_damaged_event_is_refused_and_no_other():
    record = schema.parse(DATA.schema_text)
    out = decode(DATA.encode(0, 60_000), NativeDecoder(record), SingleDecoder(record))
    bad = damage_mask(0, 60_000)
    assert list(out.failures) == np.flatnonzero(bad).tolist()
    assert out.positions.equals(pa.array(np.flatnonzero(~bad)))
    kinds = {why.split(" ")[0] for why in out.failures.values()}
    assert len(kinds) > 3, kinds
