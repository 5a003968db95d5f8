"""Which message of a Protobuf schema a value is of, where Apicurio's serializers write that into a Kafka header. Pure.

The header has the message's name without its package. Serializers of version 3 write the message `Ref` before the value
as well, those of version 2 do not, and version 3 does not with `apicurio.registry.serde.send-type-ref: false`. Source:
`ProtobufKafkaSerializer` of Apicurio, 2.0 to 3.3.
"""

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous
from headrace.writer.framing.message_marks import NAME_HEADER, write_name
from headrace.writer.framing.wire_format import kafka_header, take_groups

# No other text is the name of a message, so none is taken for a `Ref`.
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")


def split_by_name_header(records: pa.Table) -> Iterator[tuple[bytes | None, pa.Table]]:
    """Split records by the messages that their Kafka headers name; None where they name none. Groups share no memory.

    A message comes as its name where nothing stands before the value, and as the bytes of the `Ref` where that does.
    """
    names = kafka_header(contiguous(records.column("headers")), NAME_HEADER).dictionary_encode(null_encoding="encode")
    groups = take_groups(records, names.indices.to_numpy())
    for name, group in zip(names.dictionary.to_pylist(), groups, strict=True):
        if name is None or _NAME.fullmatch(name) is None:
            yield None, group
            continue
        ref = write_name(name.decode())
        has_ref = pc.starts_with(contiguous(group.column("value")), pattern=ref)
        count = pc.sum(has_ref).as_py()
        if count in (0, group.num_rows):
            yield ref if count else name, group
            continue
        yield from zip((name, ref), take_groups(group, has_ref.cast(pa.int8()).to_numpy()), strict=True)
