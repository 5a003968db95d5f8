"""Checks and estimates before a start: validate, preview, sizing, effects of a schema."""
