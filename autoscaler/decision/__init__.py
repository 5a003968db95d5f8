"""Decides how many executors a driver needs: pure functions of facts, a policy and the time."""
