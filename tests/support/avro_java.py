"""Avro's own library, which Spark brings, as a witness of what values are. One JVM for all questions."""

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from headrace.writer.clients import java_artifacts

_JARS = (
    "avro-1.*.jar",
    "jackson-annotations-*.jar",
    "jackson-core-2*.jar",
    "jackson-databind-*.jar",
    "slf4j-api-*.jar",
    "commons-compress-*.jar",
)
_SOURCE = Path(__file__).parents[1] / "servers" / "AvroJudge.java"
_REFUSED = -1


class AvroJudge:
    """The JVM with the library."""

    def __enter__(self) -> Self:
        jars = [str(jar) for pattern in _JARS for jar in java_artifacts.pyspark_jars(pattern)]
        command = [str(java_artifacts.java(17)), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._jvm = subprocess.Popen(
            [*command, "-cp", ":".join(jars), str(_SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.kill()
        self._jvm.wait()
        for pipe in (self._jvm.stdin, self._jvm.stdout):
            assert pipe is not None
            pipe.close()

    def rewrite(self, schema_text: str, values: Sequence[bytes]) -> list[bytes | None]:
        """Return each value as the library writes what it reads; None: it refuses the value, or leaves bytes over."""
        return self._ask(schema_text, values)[1]

    def accepts(self, schema_text: str) -> bool:
        """Return whether the library takes a text for a schema."""
        return self._ask(schema_text, ())[0]

    def _ask(self, schema_text: str, values: Sequence[bytes]) -> tuple[bool, list[bytes | None]]:
        request = self._jvm.stdin
        answer = self._jvm.stdout
        assert request is not None
        assert answer is not None
        text = schema_text.encode(errors="replace")  # as Java writes half of a pair of characters
        request.write(_frame(text) + struct.pack(">i", len(values)) + b"".join(map(_frame, values)))
        request.flush()
        is_schema = answer.read(1) == b"\x01"
        return is_schema, [_read_answer(answer) for _ in values]


def _frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def _read_answer(answer: IO[Any]) -> bytes | None:
    (size,) = struct.unpack(">i", answer.read(4))
    return None if size == _REFUSED else bytes(answer.read(size))
