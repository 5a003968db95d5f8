"""Injects random faults into a real stack and verifies the lake independently."""
