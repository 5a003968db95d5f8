"""Where a command without a path finds its configuration file. Imports nothing: help and completion stay fast."""

import os
from pathlib import Path

VARIABLE = "HEADRACE_CONFIG"
FILE = "pipelines.yaml"
# For help.
SHOWN = f"${VARIABLE}, else ./{FILE}"
MISSING = f"Give the path of a configuration file, set {VARIABLE} to it, or write ./{FILE} with `headrace init`."


def default_config() -> Path:
    """Return the file that the environment names, else the one in the current directory; it may not exist."""
    return Path(os.environ.get(VARIABLE) or FILE)
