"""Druid's Overlord, as hooks ask it."""

from typing import Any

from tests.servers.scripted import HttpRequest, Reply

TOOK = {"ingestionStatsAndErrors": {"payload": {"rowStats": {"buildSegments": {"processed": 30, "thrownAway": 0}}}}}


class Overlord:
    """Tasks by id with their status, as Druid keeps them."""

    def __init__(self) -> None:
        self.tasks: dict[str, str] = {}
        self.specs: list[Any] = []
        self.report: Any = TOOK
        self.refusal: Reply | None = None

    def __call__(self, asked: HttpRequest) -> Reply:
        *_, name, last = asked.path.split("/")
        if asked.method == "POST" and last == "task":
            if self.refusal is not None:
                return self.refusal
            self.specs.append(asked.json())
            self.tasks[asked.json()["id"]] = "RUNNING"
            return Reply(200, {"task": asked.json()["id"]})
        if last == "markUnused":
            return Reply(200, {"numChangedSegments": 1})
        if name not in self.tasks:
            return Reply(404, b"No task with that id")
        if last == "reports":
            return Reply(200, self.report)
        status = {"id": name, "statusCode": self.tasks[name], "status": self.tasks[name], "errorMsg": "no disk"}
        return Reply(200, {"task": name, "status": status})
