"""Cores, memory, files, requests and dollars that traffic takes: `headrace size`."""
