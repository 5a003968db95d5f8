"""Requests to brokers and their answers, field by field."""
