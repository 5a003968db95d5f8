"""What the product writes as YAML is read back, whatever line breaks a text has."""

from typing import Any

import yaml
from hypothesis import example, given, strategies as st

from headrace.writer.config.yaml_text import TextDumper, dump_inline

BREAKS = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
TEXTS = st.lists(
    st.sampled_from((*BREAKS, " ", "a", "'", '"', "\\", "#", ": ", "- ")) | st.characters(exclude_categories=["Cs"])
).map("".join)
DOCUMENTS = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=6,
)


@given(DOCUMENTS, st.sampled_from([20, 120]))
@example("\x85", 120)
@example({"a\u2028": ["b\u2029c"]}, 120)
def test_a_document_is_read_back(document: Any, width: int) -> None:
    for default_flow_style in (None, False, True):
        text = yaml.dump(
            document,
            Dumper=TextDumper,
            sort_keys=False,
            allow_unicode=True,
            width=width,
            default_flow_style=default_flow_style,
        )
        assert yaml.safe_load(text) == document


@given(DOCUMENTS)
def test_a_document_on_one_line_is_read_back(document: Any) -> None:
    text = dump_inline(document)
    assert len(text.splitlines()) == 1
    assert yaml.safe_load(text) == document
