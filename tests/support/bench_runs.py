"""Runs of a bench as they would be measured, for what shows and draws them."""

from headrace.bench.contenders.contenders import CONTENDERS
from headrace.bench.data.dataset import dataset
from headrace.bench.figures import BatchMark, Run, Usage, WrittenTable
from headrace.bench.machine import Machine
from headrace.bench.rounds import Setting

MACHINE = Machine("A processor", 2, 2**33, "Linux 6", "3.11.7", "17.0.1", {"pyspark": "4.0.2"})
# CPU seconds.
COSTS = {"headrace": 45, "plain": 160, "repartitioned": 150, "limit": 30}


def bench_setting(repeats: int = 3) -> Setting:
    return Setting([dataset("200B")], 10_000_000, [CONTENDERS[letter] for letter in "abcd"], repeats)


def batch_mark(batch: int, cost: float, repeat: int) -> BatchMark:
    used = Usage(9 + cost * batch / 7, 9 + cost * batch * repeat / 9, 2 + batch)
    return BatchMark(2_500_000 * (batch + 1), used, {"tasks": 2.0 * batch}, {"decode": 1.0})


def bench_runs(repeats: int = 3) -> list[Run]:
    return [
        Run(
            name, repeat, 10_000_000, 2_020_000_000,
            tuple(batch_mark(batch, cost, repeat) for batch in range(4)),
            Usage(cost, cost, 9), 3 * 2**30, WrittenTable(3200, 700_000_000, 10_000_000),
        )
        for repeat in range(1, repeats + 1)
        for name, cost in COSTS.items()
    ]  # fmt: skip
