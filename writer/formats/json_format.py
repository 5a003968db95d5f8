"""Values in JSON, by the columns that are declared for them or that a JSON Schema gives."""

from headrace.writer.avro.schema import Record
from headrace.writer.json.block_decoder import JsonBlockDecoder, JsonDecoder, JsonSingleDecoder


class JsonFormat:
    """JSON objects."""

    name = "json"

    def is_native(self, record: Record) -> bool:  # noqa: ARG002 - of any record
        """Return that a block is read at once."""
        return True

    def open_decoder(self, record: Record, *, native: bool, header_bytes: int, scratch: str) -> JsonDecoder:  # noqa: ARG002
        """Return what decodes values of a record schema."""
        single = JsonSingleDecoder(record, header_bytes)
        return JsonDecoder(JsonBlockDecoder(record, single, header_bytes), single)
