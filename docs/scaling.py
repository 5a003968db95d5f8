"""Draws docs/images/scaling.png from the run that tests/spark/test_autoscaling.py kept. `make scaling-picture`."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUN = HERE.parent / "tests" / "spark" / "autoscaling.json"
PICTURE = HERE / "images" / "scaling.png"


def committed(samples: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return when batches were seen to be committed, and their records a second since the one before."""
    times_s, rates, last = [], [], samples[0]
    for sample in samples[1:]:
        if sample["committed"] > last["committed"]:
            times_s.append(sample["at_s"])
            rates.append((sample["committed"] - last["committed"]) / (sample["at_s"] - last["at_s"]))
            last = sample
    return times_s, rates


def draw(run: dict[str, Any], target: Path) -> None:
    """Draw load and commits, lateness, executors."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    samples, settings, marks = run["samples"], run["settings"], run["marks"]
    times_s = [sample["at_s"] for sample in samples]
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(10, 7.5), sharex=True, layout="constrained")
    top.plot(times_s, [sample["load_per_s"] for sample in samples], color="0.35", label="sent", drawstyle="steps-post")
    top.plot(*committed(samples), color="tab:blue", label="committed, by batch", alpha=0.8, drawstyle="steps-pre")
    top.set_ylabel("records a second")
    late = settings["max_delay_s"] + settings["lag_slo_s"]
    middle.plot(
        times_s, [sample["lag_s"] or 0.0 for sample in samples], color="tab:red", label="age of the oldest that waits"
    )
    middle.axhline(late, color="0.6", linestyle="--", label=f"SLO: max_delay + {settings['lag_slo_s']:.0f} s")
    middle.set_ylabel("seconds")
    for key, colour, label in (
        ("desired", "0.35", "desired"), ("registered", "tab:green", "registered"),
        ("draining", "tab:orange", "on their way out"),
    ):  # fmt: skip
        bottom.plot(times_s, [sample[key] for sample in samples], color=colour, label=label, drawstyle="steps-post")
    bottom.set_ylabel("executors")
    bottom.set_xlabel("seconds")
    for axes in (top, middle, bottom):
        for mark in ("step_up_s", "step_down_s"):
            axes.axvline(marks[mark], color="0.85", zorder=0)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper right", frameon=False)
    figure.savefig(target, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(RUN.read_text(encoding="utf-8")), PICTURE)
