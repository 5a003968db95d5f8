"""Files of a checkpoint, written as Spark does."""

import json
from pathlib import Path


def offsets(*ends: int) -> str:
    return json.dumps({"clicks": {str(partition): end for partition, end in enumerate(ends)}})


METADATA = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1795176000000, "conf": {"a": "b"}})


class CheckpointRun:
    """The checkpoint of one run, as Spark leaves it."""

    def __init__(self, root: Path, number: int = 1) -> None:
        self.path = root / "clicks" / f"{number:06d}"
        for folder in ("offsets", "commits", "sources/0"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        (self.path / "metadata").write_text('{"id":"5f4c"}')

    def started(self, *starts: int) -> "CheckpointRun":
        (self.path / "sources/0/0").write_text(f"\0v1\n{offsets(*starts)}")
        return self

    def planned(self, batch: int, *ends: int) -> "CheckpointRun":
        (self.path / f"offsets/{batch}").write_text(f"v1\n{METADATA}\n{offsets(*ends)}")
        (self.path / f"offsets/.{batch}.crc").write_bytes(b"crc")
        return self

    def committed(self, batch: int) -> "CheckpointRun":
        (self.path / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}')
        (self.path / f"commits/.{batch}.crc").write_bytes(b"crc")
        return self
