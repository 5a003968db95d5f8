"""Simulates load and compares scaling policies."""
