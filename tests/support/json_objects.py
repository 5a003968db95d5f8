"""Any JSON objects, as a sample of a topic may have them."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from headrace.writer.columns.schema_plan import PROVENANCE

NOW = datetime(2026, 11, 20, tzinfo=UTC)
RESERVED = frozenset([*PROVENANCE.names, "hour"])
NAMES = st.one_of(
    st.sampled_from(
        ["a", "A", "at", "created_at", "rest", "Rest", "rest_", "REST_", "*", "", "hour", "_offset", "null", "on", "<<",
         "=", "1", "x: y", "# x", "- x", "a.b", "é", "É", "İ", "x'y", 'x"y', "!x", "&x", "~"]
    ),
    st.text(max_size=6),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=5), st.sampled_from(["2026-11-20", "2026-11-20T05:37:30Z", "2026-11-20 05:37", "9999-99-99"])
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(1_700_000_000, 1_800_000_000),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4))
)
OBJECTS = st.lists(st.dictionaries(NAMES, VALUES, max_size=6), max_size=12)
