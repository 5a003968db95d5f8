"""Protobuf: the columns that a message type gives, and the decoding of its values. Needs the extra `protobuf`."""
