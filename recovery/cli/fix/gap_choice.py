"""Finds the gaps that a person names by their ids, or by the beginnings of these, in all pipelines that are chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from headrace.writer.core.errors import ConfigError
from headrace.writer.output.command_inputs import ChosenPipelines
from headrace.writer.table.factory import existing_table
from headrace.writer.table.gap_records import ID_SHOWN, NoSuchGap, find_gap_records, gap_records
from headrace.writer.table.ledger.gap_record import GapRecord


class AmbiguousGap(ConfigError):
    """Several gaps begin with this text."""


@dataclass(frozen=True)
class ChosenGap:
    """A gap, and the pipeline that has it."""

    pipeline: str
    gap_record: GapRecord


def find_gap(pipelines: ChosenPipelines, id_prefix: str) -> ChosenGap:
    """Return the gap whose id begins with this text. Raises NoSuchGap, AmbiguousGap.

    Raises HeadraceError where no table has it and some cannot be read.
    """
    return find_gaps(pipelines, [id_prefix])[0]


def find_gaps(pipelines: ChosenPipelines, id_prefixes: Sequence[str]) -> list[ChosenGap]:
    """Return the gaps whose ids begin with these texts. Raises as `find_gap`."""

    @cache
    def read(name: str) -> Mapping[str, GapRecord]:
        return gap_records(existing_table(name, pipelines.config), name)

    def find(id_prefix: str, name: str) -> list[GapRecord]:
        return find_gap_records(name, read(name), id_prefix)

    gaps: list[ChosenGap] = []
    for id_prefix in id_prefixes:
        records_by_pipeline, _ = pipelines.search(partial(find, id_prefix), NoSuchGap)
        matches = [ChosenGap(name, record) for name, records in records_by_pipeline.items() for record in records]
        if len(matches) > 1:
            ids = ", ".join(f"{gap.gap_record.id[:ID_SHOWN]} of {gap.pipeline}" for gap in matches)
            raise AmbiguousGap(f"{id_prefix!r} is the beginning of several gaps: {ids}. Give more of the id.")
        gaps += matches
    return gaps
