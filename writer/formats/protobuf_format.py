"""Values in Protobuf's encoding. All libraries of the extra `protobuf` are imported where a value needs them."""

from importlib.util import find_spec

from headrace.writer.avro.schema import Record
from headrace.writer.formats.format import ValueDecoder

_MODULES = ("google.protobuf", "ptars", "grpc_tools")


def missing_extra() -> str | None:
    """Return the sentence for a pipeline that reads Protobuf where its libraries are not installed; None: they are."""
    for module in _MODULES:
        try:
            is_installed = find_spec(module) is not None
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            return f"formats: protobuf needs the module {module}; install headrace[protobuf]"
    return None


class ProtobufFormat:
    """Protobuf messages."""

    name = "protobuf"

    def is_native(self, record: Record) -> bool:
        """Compare the native decoder with google.protobuf on generated messages."""
        from headrace.writer.protobuf.probe import is_native

        return is_native(record)

    def open_decoder(self, record: Record, *, native: bool, header_bytes: int, scratch: str) -> ValueDecoder:  # noqa: ARG002
        """Return what decodes values of a record schema."""
        from headrace.writer.protobuf.block_decoder import open_decoder

        return open_decoder(record, native=native, header_bytes=header_bytes)
