"""Rounds of a hook's deliveries in a process of their own, which may be killed at a step."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.sealed_lake import SealedLake

_KILLED = -9
_PROGRAM = """
import sys
from datetime import datetime, timedelta
from pathlib import Path
from headrace.writer.config.pipelines import Config
from headrace.writer.hooks.dispatcher import deliveries

config = Config.model_validate_json(Path(sys.argv[1]).read_text())
(delivery,) = deliveries("clicks", config)
now = datetime.fromisoformat("2026-11-20T12:00:00+00:00")
for n in range(6):
    delivery.run_round(now + timedelta(minutes=n))
"""


class HookRounds:
    """Rounds of the one hook of a lake."""

    def __init__(self, lake: SealedLake, directory: Path, hook: dict[str, Any]) -> None:
        """`hook`: its section of the configuration, with its secrets."""
        document = lake.config.model_dump(mode="json", exclude={"pipelines": {"clicks": {"hooks"}}}, exclude_none=True)
        document["registry"] = {"url": "http://127.0.0.1:1"}
        document["pipelines"]["clicks"]["bucket"]["width"] = "1 h"
        document["pipelines"]["clicks"]["hooks"] = [hook]
        config = directory / "config.json"
        config.write_text(json.dumps(document))
        self._command = [sys.executable, "-c", _PROGRAM, str(config)]

    def run(self) -> None:
        """Deliver all that waits."""
        subprocess.run(self._command, timeout=400, check=True)

    def kill_at(self, fault: str) -> None:
        """Deliver until a step, such as `hook_delivered:1`, at which the process is killed."""
        process = subprocess.run(self._command, env={**os.environ, "HEADRACE_FAULT": fault}, timeout=400, check=False)
        assert process.returncode == _KILLED
