"""What commands work on, as parameters: the configuration, its pipelines, tables, with the options that choose them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.output.cli_options import ConfigFile, OfRaw, OnePipeline, OneTarget, OnlyTarget, Pipelines
from headrace.writer.output.command import Depends
from headrace.writer.output.table_choice import ChosenTable, choose_tables, load_table

Result = TypeVar("Result")


@dataclass(frozen=True)
class ChosenPipeline:
    """The one pipeline that a command works on."""

    name: str
    config: Config


@dataclass(frozen=True)
class ChosenPipelines:
    """The pipelines that a command works on, in the order of the file."""

    names: list[str]
    config: Config

    def look_at_each(self, look: Callable[[str], Result]) -> tuple[dict[str, Result], HeadraceError | None]:
        """Return what `look` returns, by pipeline, and the failure of the pipelines at which it fails.

        Raises this failure where it fails at all.
        """
        results: dict[str, Result] = {}
        errors: list[HeadraceError] = []
        for name in self.names:
            try:
                results[name] = look(name)
            except HeadraceError as error:
                errors.append(error)
        failure = join_failures(errors)
        if failure is not None and not results:
            raise failure
        return results, failure

    def search(
        self, look: Callable[[str], Result], absence: type[HeadraceError]
    ) -> tuple[dict[str, Result], HeadraceError | None]:
        """Return what `look` returns, by the pipelines that have it, and the failure of those that cannot be read.

        `look` raises `absence` for a pipeline that lacks it. Raises `absence` where all of them do, and their failure
        where none has it and some cannot be read.
        """
        results: dict[str, Result] = {}
        absences: list[HeadraceError] = []
        errors: list[HeadraceError] = []
        for name in self.names:
            try:
                results[name] = look(name)
            except absence as error:
                absences.append(error)
            except HeadraceError as error:
                errors.append(error)
        if results:
            return results, join_failures(errors)
        if errors:
            raise HeadraceError(_join([*absences, *errors]))
        raise absence(_join(absences))


def _join(errors: Sequence[HeadraceError]) -> str:
    """Return the sentences of errors, as the process says several."""
    return "\nheadrace: ".join(map(str, errors))


def join_failures(errors: Sequence[HeadraceError]) -> HeadraceError | None:
    """Return one failure that tells all of them; None where there is none."""
    if not errors:
        return None
    return HeadraceError(_join(errors))


def look_at_each_table(
    tables: Sequence[ChosenTable], look: Callable[[ChosenTable], Result]
) -> tuple[dict[str, Result], HeadraceError | None]:
    """Return what `look` returns, by the title of the table, and the failure of the tables at which it fails.

    Raises this failure where it fails at all: a ConfigError where each is one; of one table its own.
    """
    results: dict[str, Result] = {}
    errors: dict[str, HeadraceError | OSError] = {}
    for table in tables:
        try:
            results[table.title] = look(table)
        # A storage may raise OSError.
        except (HeadraceError, OSError) as error:
            errors[table.title] = error
    if len(tables) == len(errors) == 1:
        raise errors[tables[0].title]
    sentences = [HeadraceError(f"{title}: {error}") for title, error in errors.items()]
    failure = join_failures(sentences)
    if failure is not None and not results:
        if all(isinstance(error, ConfigError) for error in errors.values()):
            raise ConfigError(str(failure))
        raise failure
    return results, failure


def choose_pipeline(config: ConfigFile, pipeline: OnePipeline = None) -> ChosenPipeline:
    """Read the configuration, and name the pipeline that is meant. Raises ConfigError."""
    settings = load(config)
    return ChosenPipeline(settings.one(pipeline), settings)


def choose_pipelines(config: ConfigFile, pipeline: Pipelines = None) -> ChosenPipelines:
    """Read the configuration, and name the pipelines that are meant. Raises ConfigError."""
    settings = load(config)
    return ChosenPipelines(settings.chosen(pipeline), settings)


def _choose_tables(config: ConfigFile, pipeline: Pipelines = None, target: OnlyTarget = None) -> list[ChosenTable]:
    return choose_tables(load(config), pipeline, target)


def _choose_tables_or_raw(
    config: ConfigFile, pipeline: Pipelines = None, target: OnlyTarget = None, raw: OfRaw = False
) -> list[ChosenTable]:
    return choose_tables(load(config), pipeline, target, raw=raw)


def _choose_table(config: ConfigFile, pipeline: OnePipeline = None, target: OneTarget = None) -> ChosenTable:
    return load_table(config, pipeline, target)


def _choose_table_or_raw(
    config: ConfigFile, pipeline: OnePipeline = None, target: OneTarget = None, raw: OfRaw = False
) -> ChosenTable:
    return load_table(config, pipeline, target, raw=raw)


def _load(config: ConfigFile) -> Config:
    return load(config)


def _read_clock() -> datetime:
    return datetime.now(UTC)


# Parameters of commands; `headrace.writer.output.table_choice` has the rule.
Settings = Annotated[Config, Depends(_load)]
Pipeline = Annotated[ChosenPipeline, Depends(choose_pipeline)]
PipelineNames = Annotated[ChosenPipelines, Depends(choose_pipelines)]
Tables = Annotated[list[ChosenTable], Depends(_choose_tables)]
TablesOrRaw = Annotated[list[ChosenTable], Depends(_choose_tables_or_raw)]
Table = Annotated[ChosenTable, Depends(_choose_table)]
TableOrRaw = Annotated[ChosenTable, Depends(_choose_table_or_raw)]
# When the command began: what is due is the same when it is shown and, once a person agreed, when it is done.
Now = Annotated[datetime, Depends(_read_clock)]
