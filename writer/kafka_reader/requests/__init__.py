"""Requests to brokers and their answers, field by field: Fetch, Metadata, OffsetForLeaderEpoch."""
