"""Protobuf values: schemas as texts and as descriptors, the record schemas that become of them, and the decoder."""
