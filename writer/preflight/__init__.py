"""Checks and estimates before a start: validate, preview, tests, sizing, effects of a schema."""
