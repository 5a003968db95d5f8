"""Asks the driver for executors: one request, one answer. It does the rest, whether this process lives or not."""

from dataclasses import dataclass
from urllib.parse import urlencode

from autoscaler.decision.events import Event
from writer.clients.driver_endpoint import Driver, ask_at
from writer.clients.http import RequestFailed
from writer.config.connections import Autoscaler

_ANSWER_WITHIN_S = 5.0
_WORDS_MAX = 500  # characters of a reason


@dataclass(frozen=True)
class DriverReply:
    """What the driver said: taken, or why not."""

    taken: bool
    says: str = ""


def ask(driver: Driver, section: Autoscaler, executors: int, because: Event) -> DriverReply:
    """Ask a driver for so many executors. A driver that does not answer is an answer too."""
    token = "" if section.token is None else section.token.get_secret_value()
    said = {"executors": executors, "decision": because.verdict, "reason": because.why[:_WORDS_MAX]}
    asked = said if because.wanted is None else {**said, "recommended": because.wanted}
    url, headers = f"{driver.url}/scale?{urlencode(asked)}", {"Authorization": f"Bearer {token}"}
    try:
        answer = ask_at(url, driver.certificate, timeout_s=_ANSWER_WITHIN_S, method="POST", headers=headers)
    except RequestFailed as error:
        return DriverReply(taken=False, says=f"the driver at {driver.url} does not answer: {error}")
    return DriverReply(taken=answer.ok, says="" if answer.ok else answer.shown())
