"""Values that AWS Glue's serializers have compressed: what is inflated, why a value is not, and how much at once."""

import random
import resource
import zlib
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.writer.framing import compression
from headrace.writer.framing.compression import INFLATED_BYTES_MAX, inflate_value, split_plain
from headrace.writer.framing.wire_format import CONFLUENT, GLUE
from tests.support.glue_values import DAMAGES, bomb, compressed, plain

ONE = UUID("89791762-2336-4186-9674-299b90a802e2")
BODY = b'{"id": 1, "name": "some text, some text, some text"}'


def split(values: list[bytes], **limits: int) -> list[compression.PlainPart]:
    return list(split_plain(pa.array(values, pa.binary()), GLUE, **limits))


def test_a_compressed_value_is_as_if_it_were_not() -> None:
    (part,) = split([plain(ONE, BODY), compressed(ONE, BODY), compressed(ONE, b""), compressed(ONE, BODY, 0)])
    assert part.values.to_pylist() == [plain(ONE, BODY), plain(ONE, BODY), plain(ONE, b""), plain(ONE, BODY)]
    assert (part.start, part.stop, part.failures) == (0, 4, {})


def test_values_without_compression_are_not_copied() -> None:
    values = pa.array([plain(ONE, BODY)] * 3, pa.binary())
    (part,) = split_plain(values, GLUE)
    assert part.values is values
    assert part.positions is None
    # Byte 5 of another format is no compression.
    others = pa.array([b"\0\5\0\0\1rest"], pa.binary())
    (part,) = split_plain(others, CONFLUENT)
    assert part.values is others


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_stream_fails_alone(damage: str) -> None:
    rng = random.Random(damage)
    broken = DAMAGES[damage](compressed(ONE, BODY), rng)
    (part,) = split([compressed(ONE, BODY), broken, plain(ONE, BODY), compressed(ONE, BODY)])
    assert part.positions is not None
    assert part.positions.to_pylist() == [0, 2, 3]
    assert part.values.to_pylist() == [plain(ONE, BODY)] * 3
    assert list(part.failures) == [1]
    assert part.failures[1].startswith(("the zlib stream", "bytes follow the zlib stream"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: value[:-3], "the zlib stream is cut off"),
        (lambda value: value[:18], "the zlib stream is cut off"),
        (lambda value: value + b"x", "bytes follow the zlib stream"),
        (lambda value: value[:18] + b"{}", "the zlib stream is damaged (Error -3 while decompressing data: "),
    ],
)
def test_a_reason_says_what_is_wrong(change: Callable[[bytes], bytes], reason: str) -> None:
    (part,) = split([change(compressed(ONE, BODY))])
    assert part.failures[0].startswith(reason)
    assert "some text" not in part.failures[0]


def test_a_preset_dictionary_is_refused() -> None:
    deflater = zlib.compressobj(zdict=b"some text")
    with pytest.raises(ValueError, match="zlib stream is damaged"):
        inflate_value(b"\3\5" + ONE.bytes + deflater.compress(BODY) + deflater.flush())


def test_a_value_may_inflate_to_the_limit_and_no_further() -> None:
    assert len(inflate_value(compressed(ONE, bytes(1000)), 1000)) == 1018
    with pytest.raises(ValueError, match=r"zlib stream holds more than 1000 B"):
        inflate_value(compressed(ONE, bytes(1001)), 1000)


def test_values_are_inflated_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "PART_BYTES", 5_000)
    values = [compressed(ONE, bytes([number]) * 1_000) for number in range(23)]
    values[7] = values[7][:-1]
    parts = split(values)
    assert [(part.start, part.stop) for part in parts] == [(0, 5), (5, 11), (11, 16), (16, 21), (21, 23)]
    assert [part.failures for part in parts][1] == {2: "the zlib stream is cut off"}
    bodies = [value for part in parts for value in part.values.to_pylist()]
    assert bodies == [plain(ONE, bytes([number]) * 1_000) for number in range(23) if number != 7]
    assert [part.start + position for part in parts for position in part.positions.to_pylist()] == [
        number for number in range(23) if number != 7
    ]


def test_bombs_take_the_memory_of_one_value() -> None:
    explosive = bomb(ONE, INFLATED_BYTES_MAX + 1)
    large = bomb(ONE, INFLATED_BYTES_MAX // 2)
    assert len(explosive) < 2**17
    values = pa.array([plain(ONE, BODY), *[explosive, large] * 6, compressed(ONE, BODY)], pa.binary())
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    good = 0
    reasons: list[str] = []
    for part in split_plain(values, GLUE):
        good += len(part.values)
        reasons += part.failures.values()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert good == 8
    assert reasons == ["the zlib stream holds more than 64.0 MiB"] * 6
    assert grown_kib < 4 * INFLATED_BYTES_MAX / 2**10
