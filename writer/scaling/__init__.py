"""Adds and removes the driver's executors."""
