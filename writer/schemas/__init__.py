"""Schemas by id from a registry or files, and detection of the wire format."""
