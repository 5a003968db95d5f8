"""Tables of a route, with a window of keys."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.writer.audit.audit import audit
from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.task import Piece
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.commit import builder
from headrace.writer.commit.targets import add_targets
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.driver.sealing.steps import beside_seals, seal_due
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.factory import all_tables
from tests.support.dedupe_window import BASE, MUCH_LATER, WINDOW
from tests.support.local_driver import log
from tests.support.sample_records import EVENT, NOW, Schemas, config, value

P0 = TopicPartition("clicks", 1, 0)


SCHEMAS = {1: EVENT, 2: {**EVENT, "name": "Other"}}


class Routed:
    """A pipeline of two tables, Event and Other; repeats of the former go within a window."""

    def __init__(self, root: Path, form: str, dedupe: Any = WINDOW, **event: Any) -> None:
        self.places = {name: str(root / "lake" / name.lower()) for name in ("Event", "Other")}
        event = {"location": self.places["Event"], "compact": {"at_seal": True, "dedupe": dedupe}, **event}
        route = {"by": "record", "targets": {"Event": event, "Other": self.places["Other"]}}
        self.config = config(root, table={"location": str(root / "log"), "format": form}, route=route)
        self.tables = all_tables("clicks", self.config)
        settings = self.config.pipelines["clicks"]
        self.tables.main.create(PROVENANCE, [])
        self.tables.side(settings.dead_letters).create(DEAD_LETTERS, [])
        self.epoch = self.tables.main.begin({P0: 0}, {"clicks": ["uuid-1"]})

    def carry(self, rows: Sequence[tuple[int, int, int]], came: int = 0) -> None:
        """Commit rows of these schemas, ids and hours; `came`: minutes of Kafka's time."""
        main = self.tables.main
        self.tables.apply_side_files()
        pipeline = open_local_pipeline("clicks", self.config, Schemas(SCHEMAS, [1, 2]), tables=self.tables)
        snapshot = main.snapshot()
        start = main.snapshot().frontier(P0) or 0
        values = {
            start + n: value(schema, SCHEMAS[schema], {"id": number, "at": BASE + timedelta(hours=hour), "note": None})
            for n, (schema, number, hour) in enumerate(rows)
        }
        records = log(values, kafka_time=NOW + timedelta(minutes=came))
        closed = snapshot.closed_targets
        assert pipeline.targets is not None
        targets = pipeline.targets
        report = builder.merge_reports(
            [
                pipeline.run(
                    lambda _: [Piece(records)],
                    lambda _: add_targets(pipeline.task_plan(NOW, "1", {"clicks": 1}), targets, closed),
                )
            ]
        )
        pipeline.grow(main, main)
        batch = builder.batch(
            report,
            [OffsetRange(P0, start, start + len(rows))],
            epoch=self.epoch,
            settled=self.tables.settled,
            side=pipeline.side_files(report),
            seen={},
            closed=(None, closed),
            facts={"started": NOW.isoformat(), **builder.target_facts(report)},
        )
        main.append(batch, main.snapshot())
        self.tables.apply_side_files()

    def seal(self, hours: int, *, late: bool = False) -> Sealer:
        """Close the buckets of both tables up to an hour and seal them, as the driver does. Returns Event's sealer."""
        sealers = {}
        for target in self.places:
            sealer = sealers[target] = Sealer("clicks", self.config, target, self.tables)
            steps = beside_seals(sealer, self.config.at_target("clicks", target), here)
            sealer.close(sealer.follow(), BASE + timedelta(hours=hours), "command", NOW)
            if late and "late rows" in steps:
                steps["late rows"](sealer, MUCH_LATER)
            seal_due(sealer, MUCH_LATER)
        return sealers["Event"]

    def offsets(self, location: str) -> list[int]:
        rows = self.tables.side(location).rows().to_table(columns=["_offset"])
        return sorted(rows["_offset"].to_pylist())

    def check(self, *, rows: int, late: int = 0) -> None:
        result = audit(self.config, "clicks", since=None, deep=True)
        assert result.adds_up, result.problems
        assert (result.rows_taken.get("dedupe", 0), result.late_taken.get("dedupe", 0)) == (rows, late)
