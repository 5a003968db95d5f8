"""Decides and requests the number of executors from lag and rates."""
