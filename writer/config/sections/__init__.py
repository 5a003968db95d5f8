"""The sections of the configuration file: each with its keys, defaults and checks."""
