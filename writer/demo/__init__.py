"""The demo: all of headrace on one machine."""
