"""Builds one commit from the reports of tasks, and checks it."""
