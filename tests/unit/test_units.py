"""Durations and sizes, as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from headrace.writer.core.units import duration, show_duration, show_size, size


@given(st.integers(1, 10**15))
def test_a_duration_is_shown_as_it_is_read(milliseconds):
    value = timedelta(milliseconds=milliseconds)
    assert duration(show_duration(value)) == value


@given(st.integers(1, 2**20), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_a_size_is_shown_as_it_is_read_to_a_twentieth(number, unit):
    value = size(f"{number} {unit}")
    assert size(show_size(value)) == pytest.approx(value, rel=0.05)


@given(st.integers(1, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_a_whole_size_is_shown_exactly(number, unit):
    assert size(show_size(size(f"{number} {unit}"))) == size(f"{number} {unit}")


@pytest.mark.parametrize(
    ("text", "value"),
    [("500 ms", 0.5), ("1s", 1), ("10 min", 600), (" 1.5 h ", 5400), ("2 d", 172800), ("1 w", 604800), ("1 MIN", 60)],
)
def test_a_duration_needs_a_number_and_a_unit(text, value):
    assert duration(text) == timedelta(seconds=value)


@pytest.mark.parametrize(("text", "value"), [("1 B", 1), ("64 MiB", 2**26), ("1.5kB", 1500), ("2 gib", 2**31)])
def test_a_size_needs_a_number_and_a_unit(text, value):
    assert size(text) == value


@pytest.mark.parametrize("text", ["10", "ten min", "", "10 parsecs", "-1 s", "0 s", 10, None, True])
def test_a_text_that_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="'10 min'") as refused:
        duration(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["10", "ten MiB", "", "10 MiBs", "-1 B", "0 B", "0.1 B", None, 0, 128, True, 1.5])
def test_a_text_that_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="'128 MiB'") as refused:
        size(text)
    assert repr(text) in str(refused.value)
