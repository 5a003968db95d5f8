"""The catalogue of damages: classifies an error by its text with all causes.

The class of an error says little: what fails in `foreachBatch` has the same class whatever it is. So all causes count.
The catalogue is data, `damages.json`, with the words of each version of Spark; the first row that fits is taken.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.clients.java_artifacts import SPARK_RELEASES, SparkUnsupported, spark_release

_FORMAT = 1


@dataclass(frozen=True)
class Damage:
    """One row of the catalogue."""

    row: str
    damage: str
    # The class: what all rows of a kind have in common.
    kind: str
    # The first recovery level; None: headrace goes on by itself, or a person must act.
    level: RecoveryLevel | None
    halt: bool
    message: str
    # What plain Spark says.
    symptom: re.Pattern[str] | None = None
    # What headrace says itself.
    ours: re.Pattern[str] | None = None
    # The check of the preflight that finds it.
    finding: str | None = None
    # Why no test does this damage.
    not_run: str | None = None
    # Tests that do it under another name.
    elsewhere: Sequence[str] = ()

    def fits(self, text: str) -> bool:
        """Return whether the text of an error and its causes is of this damage."""
        return any(pattern is not None and pattern.search(text) for pattern in (self.ours, self.symptom))


@dataclass(frozen=True)
class Verdict:
    """What an error leads to."""

    row: str
    # The first recovery level; None where `halt`.
    level: RecoveryLevel | None
    # A person must act: nothing that is tried again would help.
    halt: bool
    message: str


UNKNOWN = Verdict("unknown", RecoveryLevel.RESTART, halt=False, message="The catalogue does not know this error.")


def catalogue() -> tuple[Damage, ...]:
    """Return all damages, with the words of the Spark that is installed.

    With one that headrace does not run on, no Spark speaks: a start ends before. So the words are those of the newest.
    """
    try:
        return catalogue_for(spark_release().minor)
    except SparkUnsupported:
        return catalogue_for(list(SPARK_RELEASES)[-1])


@cache
def catalogue_for(minor: str) -> tuple[Damage, ...]:
    """Return all damages, with the words of a minor version of Spark, such as `4.1`."""
    raw = json.loads(files("headrace.recovery.escalation").joinpath("damages.json").read_text(encoding="utf-8"))
    if raw["format"] != _FORMAT:
        raise ValueError(f"recovery/escalation/damages.json has format {raw['format']}, this version reads {_FORMAT}")
    return tuple(_parse_damage(row, minor) for row in raw["damages"])


def classify(text: str, damages: Sequence[Damage] | None = None) -> Verdict:
    """Return what an error means.

    `text`: the error and all its causes, as `headrace.writer.driver.restart_policy.causes` writes them out.

    An error that no row fits begins with a restart.
    """
    for damage in catalogue() if damages is None else damages:
        if damage.fits(text):
            return Verdict(damage.row, damage.level, damage.halt, damage.message)
    return UNKNOWN


def _parse_damage(raw: dict[str, Any], minor: str) -> Damage:
    return Damage(
        row=raw["row"],
        damage=raw["damage"],
        kind=raw["class"],
        level=None if raw["level"] is None else RecoveryLevel[raw["level"]],
        halt=raw["halt"],
        message=raw["message"],
        symptom=_compile_pattern(_symptom(raw["symptom"], minor)),
        ours=_compile_pattern(raw.get("ours")),
        finding=raw.get("finding"),
        not_run=raw.get("not_run"),
        elsewhere=tuple(raw.get("elsewhere", ())),
    )


def _symptom(words: Mapping[str, str], minor: str) -> str | None:
    """Return the words of a version of Spark: those of the newest row that is not newer. None: it says nothing."""
    order = list(SPARK_RELEASES)
    versions = [version for version in words if order.index(version) <= order.index(minor)]
    return words[max(versions, key=order.index)] if versions else None


def _compile_pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(text, re.MULTILINE)
