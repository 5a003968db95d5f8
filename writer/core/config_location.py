"""Which configuration file a command reads that names none. Imports nothing, so that help and completion stay fast."""

import os
from pathlib import Path

VARIABLE, FILE = "HEADRACE_CONFIG", "pipelines.yaml"
SHOWN = f"${VARIABLE}, else ./{FILE}"  # in help
MISSING = f"Give the path of a configuration file, set {VARIABLE} to it, or write ./{FILE} with `headrace init`."


def default_config() -> Path:
    """Return the file that the environment names, else the one in the current directory; it may not exist."""
    return Path(os.environ.get(VARIABLE) or FILE)
