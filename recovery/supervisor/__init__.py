"""Runs a driver as a child process: starts it, watches it, carries out recovery decisions."""
