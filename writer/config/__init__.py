"""The configuration file: each section with its defaults and checks, and the loader."""
