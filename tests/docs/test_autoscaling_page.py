"""The scores on the page of autoscaling are of the days and the parameters that the code has."""

import importlib.util
import json
from pathlib import Path

import pytest

from headrace.autoscaler.decision.policy import DEFAULTS
from headrace.bench.simulation.run import ours
from headrace.bench.simulation.workloads import SHAPES, shape

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("docs_autoscaling_page", ROOT / "docs" / "autoscaling.py")
PAGE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGE)
AGAIN = "stale: run `docs/autoscaling.py --play`"


def test_every_day_was_played_with_the_parameters_of_today():
    kept = PAGE.scores()
    assert list(kept) == list(SHAPES), AGAIN
    for name, one in kept.items():
        assert one["mark"] == PAGE.mark(shape(name)), f"{name}: {AGAIN}"
        assert one["policy"] == PAGE.policy(), f"{name}: {AGAIN}"


def test_the_aims_hold_as_far_as_the_page_says():
    """A reversal a day, and no more time over SLO than a lag threshold of equal cost, but for luck."""
    good, held_out = set(), set()
    for name, one in PAGE.scores().items():
        scores = {score["policy"]: score for score in one["scores"]}
        ours_, other = scores["headrace"], scores["lag threshold of equal cost"]
        if ours_["reversals"] <= 1 and ours_["minutes_over_slo"] <= other["minutes_over_slo"] + 2:
            good.add(name)
            held_out |= {name} & {n for n in SHAPES if SHAPES[n]().purpose in ("untuned", "held out")}
    assert len(good) >= 4
    assert len(held_out) >= 2


def test_the_run_on_a_cluster_that_the_page_shows_is_one_that_went_well():
    run = json.loads((ROOT / "tests" / "spark" / "autoscaling.json").read_text())
    at, interval_s = run["marks"], run["settings"]["interval_s"]
    assert at["asked_s"] - at["step_up_s"] <= 2 * interval_s + 3, "two ticks, and what a look takes"
    late_s = run["settings"]["max_delay_s"] + run["settings"]["lag_slo_s"]
    late = [one["at_s"] for one in run["samples"] if (one["lag_s"] or 0.0) > late_s]
    assert late, "the step is one that takes more executors"
    assert max(late) <= at["calm_s"] < at["step_down_s"] - 30, "within the SLO again, under the same load, and it stays"
    assert (run["failed_tasks"], run["samples"][-1]["lost"]) == (0, 0)
    assert run["rows"] == run["sent"] == run["samples"][-1]["committed"]
    assert run["samples"][-1]["registered"] == 1 < at["peak"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step", "slow"])
def test_a_day_played_again_scores_what_is_kept(name):
    kept = next(one for one in PAGE.scores()[name]["scores"] if one["policy"] == "headrace")
    again = ours(shape(name), DEFAULTS)
    assert {key: getattr(again, key) for key in kept} == kept, AGAIN
