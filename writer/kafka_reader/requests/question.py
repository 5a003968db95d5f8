"""A question to a broker: which request, how it is written, and how its answer is read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.writer.kafka_reader.protocol import Api, FieldReader

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Question(Generic[Answer]):
    """`write` returns the body in a version; `read` reads the answer in that version, and raises Corrupt."""

    api: Api
    write: Callable[[int], bytes]
    read: Callable[[FieldReader, int], Answer]
