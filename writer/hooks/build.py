"""From the configuration to hooks. The one place that knows which there are."""

from writer.config import Config
from writer.hooks.base import Hook
from writer.hooks.druid import DruidHook
from writer.hooks.settings import Druid, HookSettings, Webhook
from writer.hooks.sql import SqlHook
from writer.hooks.webhook import WebhookHook


def built(settings: HookSettings, pipeline: str) -> Hook:
    """Return the hook of a section."""
    match settings:
        case Webhook():
            return WebhookHook(settings)
        case Druid():
            return DruidHook(settings, pipeline)
        case _:
            return SqlHook(settings)


def hooks_of(name: str, config: Config) -> list[tuple[HookSettings, Hook]]:
    """Return the hooks of a pipeline, each with its section."""
    return [(settings, built(settings, name)) for settings in config.pipelines[name].hooks]
