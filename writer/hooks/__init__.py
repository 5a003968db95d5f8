"""Delivers each sealed version of a bucket to each hook, at least once."""
