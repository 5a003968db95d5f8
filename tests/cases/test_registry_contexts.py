"""A registry with contexts: it is said whose schemas are read, and none is read from the wrong one."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from pydantic import ValidationError

from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.errors import ExitCode
from headrace.writer.preflight.checks.source_checks import _contexts
from headrace.writer.schemas.registry import ConfluentRegistry, RegistryUnreachable, of_keys, source
from headrace.writer.schemas.schema_id_check import registry_name
from headrace.writer.schemas.subjects import Subjects, UnclearContext, find_contexts
from tests.servers.confluent_api import ConfluentApi
from tests.servers.scripted import HttpRequest, Reply, serve_script

OURS = {"type": "record", "name": "Ours", "fields": [{"name": "id", "type": "long"}]}
THEIRS = {"type": "record", "name": "Theirs", "fields": [{"name": "name", "type": "string"}]}


@dataclass
class Contexts:
    """A registry whose contexts each number their schemas themselves, as Confluent's does."""

    by_name: dict[str, ConfluentApi] = field(default_factory=lambda: {".": ConfluentApi()})

    def __call__(self, asked: HttpRequest) -> Reply:
        """Answer a request: below `/contexts/<name>` of that context, else of the default one."""
        if asked.path.startswith("/contexts/"):
            _, _, name, rest = asked.path.split("/", 3)
            return self.by_name[name](HttpRequest(asked.method, f"/{rest}", asked.body, asked.headers))
        if asked.path == "/subjects":
            names = [(name, subject) for name, api in self.by_name.items() for subject in api.subjects]
            return Reply(body=[subject if name == "." else f":{name}:{subject}" for name, subject in names])
        return self.by_name["."](asked)

    def add(self, context: str, subject: str, schema: object) -> None:
        self.by_name.setdefault(context, ConfluentApi()).add(subject, schema)


@pytest.fixture
def contexts() -> Contexts:
    return Contexts()


@pytest.fixture
def url(contexts: Contexts) -> Iterator[str]:
    with serve_script(contexts) as server:
        yield server.url


def opened(**settings: object) -> ConfluentRegistry:
    registry = source(Registry.model_validate(settings))
    assert isinstance(registry, ConfluentRegistry)
    return registry


@pytest.mark.parametrize(
    "subjects", ["topic_name", "topic_record_name", {"strategy": "record_name", "records": {"clicks": ["Theirs"]}}]
)
def test_schemas_of_a_context_that_nobody_named_are_refused_by_its_name(
    contexts: Contexts, url: str, subjects: object
) -> None:
    contexts.add(".", "other-value", OURS)
    name = {"topic_name": "clicks-value", "topic_record_name": "clicks-Theirs"}.get(str(subjects), "Theirs")
    contexts.add(".eu", name, THEIRS)
    with pytest.raises(
        UnclearContext, match=r"in the context \.eu, and registry\.url names no context.*such as \.eu"
    ) as error:
        opened(url=url, subjects=subjects).topic_schemas("clicks")
    assert error.value.exit_code == ExitCode.CONFIGURATION


@pytest.mark.parametrize("is_in_url", [True, False])
def test_a_named_context_is_the_one_whose_ids_count(contexts: Contexts, url: str, *, is_in_url: bool) -> None:
    contexts.add(".", "clicks-value", OURS)
    contexts.add(".eu", "clicks-value", THEIRS)
    registry = opened(url=f"{url}/contexts/.eu") if is_in_url else opened(url=url, context=".eu")
    assert list(registry.topic_schemas("clicks")) == [1]
    assert "Theirs" in registry.schema(1)
    assert registry.contexts("clicks") == []
    assert of_keys(registry).topic_schemas("clicks") == {}


def test_the_default_context_can_be_named_too(contexts: Contexts, url: str) -> None:
    contexts.add(".eu", "clicks-value", THEIRS)
    assert opened(url=url, context=".").topic_schemas("clicks") == {}


def test_subjects_in_several_contexts_are_said_and_the_default_one_is_read(
    contexts: Contexts, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    contexts.add(".", "clicks-value", OURS)
    contexts.add(".eu", "clicks-value", THEIRS)
    contexts.add(".us", "clicks-value", THEIRS)
    registry = opened(url=url)
    for _ in range(2):
        assert "Ours" in registry.topic_schemas("clicks")[1]
    said = [line.getMessage() for line in caplog.records if "registry_contexts" in line.getMessage()]
    assert len(said) == 1
    assert all(name in said[0] for name in (".eu", ".us", "clicks"))
    (finding,) = _contexts(registry, ["clicks"])
    assert finding.status == "warning"
    assert "registry.context" in finding.fix


def test_keys_in_a_context_that_nobody_named_are_refused_too(contexts: Contexts, url: str) -> None:
    contexts.add(".", "clicks-value", OURS)
    contexts.add(".eu", "clicks-key", THEIRS)
    with pytest.raises(UnclearContext, match="clicks-key"):
        of_keys(opened(url=url)).topic_schemas("clicks")


def test_other_topics_and_names_with_colons_are_of_no_context() -> None:
    listed = ["clicks-value", ":.eu:clicks-eu-value", ":clicks-value", "a:.eu:clicks-value", ":*:clicks-value"]
    assert find_contexts(Subjects(), "clicks", listed) == ["."]
    assert find_contexts(Subjects(), "clicks", [":.:clicks-value", ":.a:clicks-value"]) == [".", ".a"]


def test_a_registry_that_lists_no_subjects_still_serves_a_topics_own(caplog: pytest.LogCaptureFixture) -> None:
    api = ConfluentApi()
    api.add("clicks-value", OURS)
    with serve_script(lambda asked: Reply(403) if asked.path == "/subjects" else api(asked)) as server:
        assert list(opened(url=server.url).topic_schemas("clicks")) == [1]
    assert "registry_contexts_unknown" in caplog.text


def test_ids_of_each_context_are_recorded_apart() -> None:
    plain, eu = (Registry(url="http://registry:8081", context=name) for name in (None, ".eu"))
    assert registry_name(plain, "confluent") != registry_name(eu, "confluent")
    default = Registry(url="http://registry:8081", context=".")
    assert registry_name(default, "confluent") == registry_name(plain, "confluent")
    assert (
        Registry(url="http://a:1/, http://b:2", context=".eu").address
        == "http://a:1/contexts/.eu,http://b:2/contexts/.eu"
    )


@pytest.mark.parametrize("context", ["eu", ".e:u", ".e/u", ""])
def test_a_text_that_is_no_name_of_a_context_is_refused(context: str) -> None:
    with pytest.raises(ValidationError, match="context"):
        Registry(url="http://registry:8081", context=context)
    with pytest.raises(ValidationError, match="names no context itself"):
        Registry(url="http://registry:8081/contexts/.eu", context=".eu")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://a:1/contexts/.eu,http://b:2", "several contexts"),
        ("http://a:1, http://b:2/contexts/.eu", "several contexts"),
        ("http://a:1/contexts/.eu,http://b:2/contexts/.us", "several contexts"),
        ("http://a:1/contexts/", "the name of a context belongs"),
        ("http://a:1/contexts/:/", "the name of a context belongs"),
    ],
)
def test_servers_of_one_registry_have_one_context(url: str, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Registry(url=url)


@pytest.mark.parametrize(
    "url", ["http://a:1,http://b:2/,", "http://a:1/contexts/.eu, http://b:2/contexts/.eu/", "http://a/contexts/:.eu:/"]
)
def test_servers_may_be_written_in_many_ways(url: str) -> None:
    assert Registry(url=url).names_context == (".eu" in url)


@pytest.mark.parametrize("names_context", [True, False])
def test_a_registry_that_has_no_contexts_is_not_said_to_be_away(*, names_context: bool) -> None:
    """Karapace answers an unknown path so."""
    reply = Reply(404, body={"error_code": 404, "message": "HTTP 404 Not Found"})
    with serve_script(lambda _: reply) as server:
        context = {"context": ".eu"} if names_context else {"context": "."}
        with pytest.raises(RegistryUnreachable, match="there is no schema registry at") as error:
            opened(url=server.url, **context).topic_schemas("clicks")
    assert ("have no contexts: leave the one out that registry.context" in str(error.value)) == names_context
