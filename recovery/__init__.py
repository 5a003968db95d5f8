"""Keeps the driver running after failures; backfills gaps; takes back wrong data."""
