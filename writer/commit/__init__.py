"""Builds the plan of tasks, and one commit from their reports, which it checks."""
