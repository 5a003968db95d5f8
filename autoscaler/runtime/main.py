"""`headrace autoscaler run`: creates and runs the autoscaler."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from autoscaler.decision.events import Event
from autoscaler.decision.facts import Facts
from autoscaler.decision.history import Memory
from autoscaler.decision.policy import DEFAULTS, Policy, assigned
from autoscaler.runtime import state_store
from autoscaler.runtime.collector import FactsCollector
from autoscaler.runtime.endpoints import answers
from autoscaler.runtime.loop import Loop
from writer.clients.driver_endpoint import Driver, ask_at
from writer.clients.http import RequestFailed
from writer.config.connections import Autoscaler
from writer.config.loader import ReloadableConfig, load
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.signals import on_signals
from writer.scaling.spark_settings import refusal
from writer.storage.base import Store
from writer.storage.locations import store_at
from writer.web.http_server import answering

_ANSWER_WITHIN_S = 5.0
_WORDS_MAX = 500  # characters of a reason


def policy_of(config: Config, assignments: Sequence[str]) -> Policy:
    """Return the policy: the defaults, what the configuration says, then `name=value` pairs. Raises ConfigError."""
    section = config.autoscaler
    given = [f"{name}={_text(value)}" for name, value in section.policy.items()]
    within = replace(DEFAULTS, executors_min=section.executors_min, executors_max=section.executors_max)
    return assigned(within, [*given, *assignments])


def asked(path: Path, only: list[str] | None, assignments: Sequence[str]) -> tuple[Facts, Policy, Memory]:
    """Ask Kafka and the driver once: what is known now, the policy, and what is remembered. Raises ConfigError."""
    config = load(path)
    names, policy = config.chosen(only), policy_of(config, assignments)
    facts = FactsCollector(config, names, policy).look(datetime.now(UTC))
    return facts, policy, state_store.read_state(_store(config, names)).memory


def run(file: ReloadableConfig, policy: Policy, *, dry_run: bool) -> int:
    """Scale the driver that has these pipelines until SIGTERM or SIGINT. Returns the exit code; raises ConfigError."""
    config, names = file.config, file.names
    section = config.autoscaler
    if (why := refusal(config.spark.master, config.spark.conf)) is not None:
        raise ConfigError(why)
    if section.token is None and not dry_run:
        raise ConfigError(
            "autoscaler.token is not set: the driver would not listen. Set it for both, such as "
            "${env:HEADRACE_SCALE_TOKEN}, or look on with --dry-run."
        )
    if not config.http.enabled:
        raise ConfigError("http.enabled is false: the driver answers nothing. Set it to true.")
    stop = threading.Event()
    on_signals(stop)
    store = _store(config, names)
    live = FactsCollector(config, names, policy, file)

    def request(executors: int, because: Event) -> str | None:
        return "no driver" if live.driver is None else _ask(live.driver, section, executors, because)

    loop = Loop(
        policy,
        live,
        state_store.read_state(store),
        ask=request,
        keep=partial(state_store.write_state, store),
        dry_run=dry_run,
    )
    about = {"enabled": True, "host": section.host, "port": section.port}
    http = config.http.model_copy(update=about)  # with the driver's certificate
    with answering(http, answers(lambda: loop.shown), section="autoscaler") as url:
        logging.event("autoscaler_listening", url=url, pipelines=len(names), dry_run=dry_run)
        loop.run(stop)
    return 0


def _ask(driver: Driver, section: Autoscaler, executors: int, because: Event) -> str | None:
    """Ask a driver for so many executors. Returns why it does not take that, or does not answer; None: it does."""
    token = "" if section.token is None else section.token.get_secret_value()
    request = {"executors": executors, "decision": because.verdict, "reason": because.why[:_WORDS_MAX]}
    query = request if because.wanted is None else {**request, "recommended": because.wanted}
    url, headers = f"{driver.url}/scale?{urlencode(query)}", {"Authorization": f"Bearer {token}"}
    try:
        answer = ask_at(url, driver.certificate, timeout_s=_ANSWER_WITHIN_S, method="POST", headers=headers)
    except RequestFailed as error:
        return f"the driver at {driver.url} does not answer: {error}"
    return None if answer.ok else answer.summary()


def _store(config: Config, names: Sequence[str]) -> Store:
    return store_at(f"{config.checkpoints}/{names[0]}", config.s3.settings)


def _text(value: object) -> str:
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)
