"""Which contexts of a registry have the subjects of a topic. Pure.

A context numbers its schemas itself, so one id may mean another schema in each. A registry lists the subject
`clicks-value` of the context `.eu` as `:.eu:clicks-value`; one without a context is of the default context, `.`.
"""

import re
from collections.abc import Iterable

from writer.core.errors import ConfigError
from writer.schemas.subjects import DEFAULT_GROUP, Subjects

DEFAULT_CONTEXT = "."
_QUALIFIED = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)


class UnclearContext(ConfigError):
    """The schemas of a topic are in a context that the configuration does not name."""


def find_contexts(subjects: Subjects, topic: str, listed: Iterable[str]) -> list[str]:
    """Return the contexts that have a subject of a topic, sorted. `listed`: every subject, as the registry names it."""
    by_context: dict[str, set[str]] = {}
    for name in listed:
        qualified = _QUALIFIED.fullmatch(name)
        context, subject = (DEFAULT_CONTEXT, name) if qualified is None else qualified.groups()
        by_context.setdefault(context, set()).add(subject)
    named = subjects.named(topic)
    if named is None:
        return sorted(
            context
            for context, names in by_context.items()
            if subjects.among(topic, ((DEFAULT_GROUP, name) for name in names))
        )
    wanted = {subject.name for subject in named}
    return sorted(context for context, names in by_context.items() if wanted & names)


def describe_choice(subjects: Subjects, topic: str, contexts: Iterable[str]) -> str:
    """Say that the configuration names none of several contexts, and how it does."""
    others = [context for context in contexts if context != DEFAULT_CONTEXT]
    return (
        f"the registry has {subjects.words([topic])} in the context {' and '.join(others)}, and registry.url names no "
        f"context. Set registry.context to the one that the producers use, such as {others[0]}, or to "
        f"'{DEFAULT_CONTEXT}' for the default one"
    )


def check_contexts(subjects: Subjects, topic: str, contexts: Iterable[str]) -> None:
    """Raise UnclearContext where only contexts that the configuration does not name have subjects of a topic.

    An id of a record would then be looked up in the default context, where it means another schema, or none.
    """
    names = list(contexts)
    if names and DEFAULT_CONTEXT not in names:
        raise UnclearContext(f"{describe_choice(subjects, topic, names)}.")
