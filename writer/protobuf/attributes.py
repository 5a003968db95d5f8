"""Attributes of record schemas of Protobuf. Needs no library of it."""

# Of the root: the format of its values, and the serialized FileDescriptorSet in base64.
FORMAT = "headrace.format"
PROTOBUF = "protobuf"
DESCRIPTORS = "headrace.descriptors"
# Of the root: `message_fingerprint` of the message type.
FINGERPRINT = "headrace.fingerprint"
# Of a field: its number, by which columns know it.
NUMBER = "headrace.number"
