"""The `headrace` command: one module for each command."""
