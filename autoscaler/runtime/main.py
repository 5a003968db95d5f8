"""`headrace autoscaler run`: creates and runs the autoscaler."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from headrace.autoscaler.decision.events import Event
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import DEFAULTS, Policy, apply_assignments
from headrace.autoscaler.runtime import state_store
from headrace.autoscaler.runtime.collector import FactsCollector
from headrace.autoscaler.runtime.endpoints import autoscaler_endpoints
from headrace.autoscaler.runtime.loop import Loop
from headrace.writer.clients.driver_endpoint import Driver, ask_at
from headrace.writer.config.loader import ReloadableConfig, load
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Autoscaler
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.http import RequestFailed
from headrace.writer.core.signals import StopEvents, on_signals
from headrace.writer.scaling.spark_settings import refusal
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import store_at
from headrace.writer.web.http_server import answering

_ANSWER_WITHIN_S = 5.0
# Characters of a reason.
_REASON_MAX = 500


def policy_of(config: Config, assignments: Sequence[str]) -> Policy:
    """Return the policy: the defaults, what the configuration says, then `name=value` pairs. Raises ConfigError."""
    section = config.autoscaler
    configured = [f"{name}={_assignment_text(value)}" for name, value in section.policy.items()]
    limits = replace(DEFAULTS, min_executors=section.min_executors, max_executors=section.max_executors)
    return apply_assignments(limits, [*configured, *assignments])


def _assignment_text(value: object) -> str:
    if isinstance(value, list):
        return ";".join(map(str, value))
    return str(value)


def collect_once(path: Path, pipelines: list[str] | None, assignments: Sequence[str]) -> tuple[Facts, Policy, Memory]:
    """Ask Kafka and the driver once. Returns the facts, the policy and the stored memory. Raises ConfigError."""
    config = load(path)
    names = config.chosen(pipelines)
    policy = policy_of(config, assignments)
    facts = FactsCollector(config, names, policy).collect(datetime.now(UTC))
    memory = state_store.read_state(_open_store(config, names)).memory
    return facts, policy, memory


def run(file: ReloadableConfig, policy: Policy, *, dry_run: bool) -> None:
    """Scale the driver that has these pipelines until SIGTERM or SIGINT. Raises ConfigError."""
    config = file.config
    names = file.names
    _check_config(config, dry_run=dry_run)
    events = StopEvents()
    on_signals(events)
    store = _open_store(config, names)
    collector = FactsCollector(config, names, policy, file)

    def request(executors: int, event: Event) -> str | None:
        if collector.driver is None:
            return "no driver"
        return _request_executors(collector.driver, config.autoscaler, executors, event)

    loop = Loop(
        policy,
        collector,
        state_store.read_state(store),
        request=request,
        save=partial(state_store.write_state, store),
        dry_run=dry_run,
    )
    # The autoscaler answers at an address of its own, with the driver's certificate.
    section = config.autoscaler
    http = config.http.model_copy(update={"enabled": True, "host": section.host, "port": section.port})
    with answering(http, autoscaler_endpoints(lambda: loop.last_tick), section="autoscaler") as url:
        logging.event("autoscaler_listening", url=url, pipelines=len(names), dry_run=dry_run)
        loop.run(events.stop)


def _check_config(config: Config, *, dry_run: bool) -> None:
    """Raise ConfigError where there is nothing to scale, or the driver would not listen."""
    reason = refusal(config.spark.master, config.spark.conf)
    if reason is not None:
        raise ConfigError(reason)
    if config.autoscaler.token is None and not dry_run:
        raise ConfigError(
            "autoscaler.token is not set: the driver would not listen. Set it for both, such as "
            "${env:HEADRACE_SCALE_TOKEN}, or look on with --dry-run."
        )
    if not config.http.enabled:
        raise ConfigError("http.enabled is false: the driver answers nothing. Set it to true.")


def _request_executors(driver: Driver, section: Autoscaler, executors: int, event: Event) -> str | None:
    """Ask a driver for so many executors. Returns why it does not take that, or does not answer; None: it does."""
    token = "" if section.token is None else section.token.get_secret_value()
    query = {"executors": executors, "decision": event.verdict, "reason": event.why[:_REASON_MAX]}
    if event.wanted is not None:
        query["recommended"] = event.wanted
    url = f"{driver.url}/scale?{urlencode(query)}"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        answer = ask_at(url, driver.certificate, timeout_s=_ANSWER_WITHIN_S, method="POST", headers=headers)
    except RequestFailed as error:
        return f"the driver at {driver.url} does not answer: {error}"
    if answer.ok:
        return None
    return answer.summary()


def _open_store(config: Config, names: Sequence[str]) -> Store:
    """Return the store of the first pipeline, where the autoscaler's state lies."""
    return store_at(f"{config.checkpoints}/{names[0]}", config.stores)
