"""Which pipelines and tables a command works on, by `--pipeline`, `--target` and `--raw`: the one rule of all commands.

- A command for several pipelines works on all of the file, or on those of `--pipeline`, each once.
- A command for one pipeline takes the only one of the file, or asks for `--pipeline` with the names.
- Where it works on each table by itself, a route is all of its tables, or the one of `--target`; without `--pipeline`,
  `--target` also says which pipelines.
- Where it works on one table, a route needs `--target`, and the command says which tables there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.table.factory import main_table

# Of the tables of a route that an error names.
_NAMES_SHOWN = 10


@dataclass(frozen=True)
class ChosenTable:
    """A table that a command works on."""

    pipeline: str
    # The name that goes there; None: the pipeline has no route.
    target: str | None
    # As the file has it.
    file_config: Config
    # In which this table is the pipeline's own.
    config: Config

    @property
    def title(self) -> str:
        """Its name on screens, and in documents of several tables."""
        if self.target is None:
            return self.pipeline
        return f"{self.pipeline}/{self.target}"


def choose_tables(
    config: Config, pipelines: Sequence[str] | None, target: str | None, *, raw: bool = False
) -> list[ChosenTable]:
    """Return the tables that a command works on which takes each by itself. Raises ConfigError, CommitFailed."""
    names = config.chosen(pipelines)
    if raw:
        _check_raw_alone(target)
        # Without --pipeline, those that have a raw table.
        with_raw = [name for name in names if config.pipelines[name].of_raw is not None]
        raw_names = with_raw if with_raw and not pipelines else names
        return [ChosenTable(name, None, config, config.at_raw(name)) for name in raw_names]
    if target is not None:
        with_target = [name for name in names if _has_target(config, name, target)]
        target_names = with_target if with_target and not pipelines else names
        return [_choose_target(config, name, target) for name in target_names]
    tables: list[ChosenTable] = []
    for name in names:
        if config.pipelines[name].route is None:
            tables.append(ChosenTable(name, None, config, config))
        else:
            tables += _tables_of_route(config, name)
    return tables


def load_table(path: Path, pipeline: str | None, target: str | None, *, raw: bool = False) -> ChosenTable:
    """Read the configuration, and return the one table that a command works on. Raises ConfigError, CommitFailed."""
    config = load(path)
    name = config.one(pipeline)
    if raw:
        _check_raw_alone(target)
        return ChosenTable(name, None, config, config.at_raw(name))
    return _choose_target(config, name, target)


def _check_raw_alone(target: str | None) -> None:
    if target is not None:
        raise ConfigError("the raw table is the pipeline's, not a target's; leave --target or --raw out")


def _choose_target(config: Config, name: str, target: str | None) -> ChosenTable:
    """Return the table of a pipeline, or of a target of its route. Raises ConfigError, CommitFailed."""
    if config.pipelines[name].route is not None and (target is None or not _has_target(config, name, target)):
        names = _target_names(config, name)
        choice = " or ".join(names[:_NAMES_SHOWN])
        if len(names) > _NAMES_SHOWN:
            choice += f", or one of {len(names) - _NAMES_SHOWN:,} more"
        problem = f"fills {plural(len(names), 'table')}"
        if target is not None:
            problem = f"has no target {target!r}"
        raise ConfigError(f"pipeline {name!r} {problem}; say which table: --target {choice}")
    return ChosenTable(name, target, config, config.at_target(name, target))


def _has_target(config: Config, name: str, target: str) -> bool:
    route = config.pipelines[name].route
    return route is not None and (target in route.fixed or route.rule_of(target) is not None)


def _target_names(config: Config, name: str) -> list[str]:
    """Return the tables of a route by name: those that its log has, then others that the file names."""
    route = config.pipelines[name].route
    assert route is not None, "only a route has targets"
    names = [*_names_in_log(config, name), *route.fixed]
    return list(dict.fromkeys(names)) or list(route.targets)


def _names_in_log(config: Config, name: str) -> list[str]:
    """Return the tables of a route that its log has and that the file still fills. Raises CommitFailed."""
    log = main_table(name, config)
    if not log.exists():
        return []
    settings = config.pipelines[name]
    targets = log.snapshot().targets().values()
    return [target.name for target in targets if settings.rule_of(target.name, target.location) is not None]


def _tables_of_route(config: Config, name: str) -> list[ChosenTable]:
    """Return the tables of a route that are there. Raises ConfigError where there is none yet."""
    tables = [
        ChosenTable(name, target, config, config.at_target(name, target)) for target in _names_in_log(config, name)
    ]
    existing = [table for table in tables if main_table(name, table.config).exists()]
    if not existing:
        raise ConfigError(
            f"no table of the route of pipeline {name!r} is there yet. Start the pipeline (`headrace run`)."
        )
    return existing
