"""The configuration file: the loader, the whole file, one pipeline of it, and what its sections share."""
