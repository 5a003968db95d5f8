"""The example for KEDA names what KEDA's documentation names, and metrics that there are."""

from pathlib import Path

import yaml

from headrace.autoscaler.runtime.endpoints import CATALOGUE

FILE = Path(__file__).parents[2] / "docs" / "examples" / "keda.yaml"
# The metadata of KEDA's triggers that the example uses, as its pages of the two scalers list them (2.22).
KNOWN = {
    "kafka": {
        "bootstrapServers", "consumerGroup", "topic", "lagThreshold", "offsetResetPolicy", "allowIdleConsumers",
        "excludePersistentLag",
    },
    "prometheus": {"serverAddress", "query", "threshold", "ignoreNullValues"},
}  # fmt: skip


def test_the_example_has_two_ways_in_words_that_keda_knows():
    found = list(yaml.safe_load_all(FILE.read_text()))
    kinds = []
    for one in found:
        assert (one["apiVersion"], one["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
        assert one["spec"]["minReplicaCount"] <= one["spec"]["maxReplicaCount"]
        (trigger,) = one["spec"]["triggers"]
        kinds.append(trigger["type"])
        assert set(trigger["metadata"]) == KNOWN[trigger["type"]]
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes strings"
    assert kinds == ["kafka", "prometheus"]


def test_the_metric_that_it_asks_for_is_there():
    by_decision = list(yaml.safe_load_all(FILE.read_text()))[1]
    assert by_decision["spec"]["triggers"][0]["metadata"]["query"] in {f"max({metric.name})" for metric in CATALOGUE}
