"""What the demo shows of its writer."""

from tests.support.pipeline_states import NOW, pipeline_states
from writer.demo.status_view import View
from writer.status.document import document

_STATUS = document([pipeline_states()["backlog"]], NOW)
VIEW = View("the writer runs", "events", 120_000, 200_000, {**_STATUS["pipelines"]["clicks"], "at": _STATUS["at"]})
