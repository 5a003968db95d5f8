"""What a format of values does not offer is refused with a sentence, and docs/TYPES.md says so."""

import re
from pathlib import Path

import pytest

from headrace.writer.core.errors import ConfigError
from tests.contract import test_features_by_format, test_upkeep_by_format
from tests.support.format_features import CASES, FEATURES, Feature, Refusal

# They declare the features.
MODULES = (test_features_by_format, test_upkeep_by_format)
REFUSED = [(feature, name, refusal) for feature in FEATURES.values() for name, refusal in feature.refusals.items()]


@pytest.mark.parametrize(
    ("feature", "name", "refusal"), REFUSED, ids=[f"{feature.title}, {name}" for feature, name, _ in REFUSED]
)
def test_a_feature_that_a_format_lacks_is_refused(
    feature: Feature, name: str, refusal: Refusal, tmp_path: Path
) -> None:
    assert name not in feature.formats
    with pytest.raises((ConfigError, ValueError), match=re.escape(refusal.sentence)):
        refusal.act(CASES[name], tmp_path)


@pytest.mark.parametrize("feature", FEATURES.values(), ids=list(FEATURES))
def test_each_feature_is_offered_refused_or_absent_in_each_format(feature: Feature) -> None:
    assert sorted([*feature.formats, *feature.refusals, *feature.absent]) == sorted(CASES)
