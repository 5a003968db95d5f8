"""The table of the commands: their groups in `headrace --help`, the function that each is, an example, a line of help.

A command is a row here and a function that `headrace.writer.output.command` decorates. Its module is imported when it
is called: help and completion import none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command, and the function that runs it."""

    name: str
    # As module:function.
    function: str
    example: str
    # At most 62 characters: one line at 80 columns. Commands of a group say it by the first line of their docstring.
    summary: str = ""


@dataclass(frozen=True)
class CommandGroup:
    """Commands that share their first word."""

    name: str
    summary: str
    commands: Sequence[Command]


# Groups of help in their order. A command in "Look" writes nothing.
COMMANDS: Mapping[str, Sequence[Command | CommandGroup]] = {
    "Run": (
        Command(
            "init",
            "headrace.writer.cli.run.init:init",
            "headrace init --bootstrap-servers broker-1:9092 --registry-url http://registry:8081 --topic clicks",
            "Write a configuration to begin with, from a broker and topics",
        ),
        Command(
            "validate",
            "headrace.writer.cli.run.validate:validate",
            "headrace validate pipelines.yaml --sample 5000",
            "Check everything that a start needs",
        ),
        Command(
            "preview",
            "headrace.writer.cli.run.preview:preview",
            "headrace preview pipelines.yaml --at assigned -n 5",
            "Show what becomes of a topic's records",
        ),
        Command(
            "test",
            "headrace.writer.cli.run.test:run_tests",
            "headrace test specs/ --junit tests.xml",
            "Test pipelines with records of files, without Kafka",
        ),
        Command(
            "run",
            "headrace.writer.cli.run.run:run",
            "headrace run pipelines.yaml --once",
            "Run the writer until it is stopped",
        ),
        Command(
            "reload",
            "headrace.writer.cli.run.reload:reload",
            "headrace reload pipelines.yaml",
            "Let the running writer read its file again",
        ),
        Command(
            "pause",
            "headrace.writer.cli.run.pause:pause",
            'headrace pause pipelines.yaml --pipeline clicks --reason "the bucket moves"',
            "Stop the pipelines' commits until `resume`",
        ),
        Command(
            "resume",
            "headrace.writer.cli.run.pause:resume",
            "headrace resume pipelines.yaml --pipeline clicks",
            "End a pause",
        ),
        Command(
            "limit",
            "headrace.writer.cli.run.limit:limit",
            "headrace limit pipelines.yaml --pipeline clicks --records-per-second 5000",
            "Show or set the pipelines' rate limit while they run",
        ),
        Command(
            "demo",
            "headrace.writer.cli.run.demo:demo",
            "headrace demo --keep /tmp/headrace-demo",
            "Show it all on this machine, with a broker and a registry",
        ),
    ),
    "Look": (
        Command(
            "status",
            "headrace.writer.cli.look.status:status",
            "headrace status pipelines.yaml --watch",
            "Show lag, last commit, dead letters, retention, executors",
        ),
        Command(
            "explain",
            "headrace.writer.cli.look.explain:explain",
            "headrace explain pipelines.yaml --batch 41",
            "Explain why a batch was committed when it was",
        ),
        Command(
            "buckets",
            "headrace.writer.cli.look.buckets:buckets",
            "headrace buckets pipelines.yaml --state reopened --since 2026-11-20T00:00Z",
            "List the buckets: open, closed, blocked, sealed, reopened",
        ),
        Command(
            "wait",
            "headrace.writer.cli.look.wait:wait",
            "headrace wait pipelines.yaml --sealed 2026-11-20T05 --timeout '30 min'",
            "Block until a bucket, or all of a day, is sealed",
        ),
        Command(
            "audit",
            "headrace.writer.cli.look.audit:audit",
            "headrace audit pipelines.yaml --since 2026-11-20T00:00Z --deep",
            "Prove that every offset is accounted for",
        ),
        Command(
            "diff",
            "headrace.writer.cli.look.diff:diff",
            "headrace diff pipelines.yaml --with new.yaml",
            "Compare two tables of the same topics, offset by offset",
        ),
        Command(
            "ddl",
            "headrace.writer.cli.look.ddl:ddl",
            "headrace ddl pipelines.yaml --engine trino",
            "Print what Trino, Presto, Druid, Spark, DuckDB or dbt needs",
        ),
    ),
    "Fix": (
        CommandGroup(
            "dlq",
            "List, show and replay dead letters",
            (
                Command(
                    "list",
                    "headrace.writer.cli.fix.dlq:list_",
                    "headrace dlq list pipelines.yaml --since 2026-11-20T00:00Z",
                ),
                Command(
                    "show",
                    "headrace.writer.cli.fix.dlq:show",
                    'headrace dlq show pipelines.yaml --reason "unknown schema" -n 5',
                ),
                Command(
                    "replay", "headrace.writer.cli.fix.dlq:replay", "headrace dlq replay pipelines.yaml --schema-id 7"
                ),
            ),
        ),
        CommandGroup(
            "gaps",
            "List, show, open and close gaps: offsets that were skipped",
            (
                Command("list", "headrace.recovery.cli.fix.gaps:list_", "headrace gaps list pipelines.yaml --all"),
                Command("show", "headrace.recovery.cli.fix.gaps:show", "headrace gaps show pipelines.yaml 3f2a"),
                Command(
                    "close",
                    "headrace.recovery.cli.fix.gaps:close",
                    'headrace gaps close pipelines.yaml 3f2a --reason "the archive has no such day"',
                ),
                Command(
                    "open",
                    "headrace.recovery.cli.fix.gaps:open_",
                    'headrace gaps open pipelines.yaml --reason "only new events matter"',
                ),
            ),
        ),
        Command(
            "backfill",
            "headrace.recovery.cli.fix.backfill:backfill",
            "headrace backfill pipelines.yaml --from-archive s3://archive/clicks --dry-run",
            "Fill gaps from Kafka, a mirror or an archive",
        ),
        Command(
            "reprocess",
            "headrace.recovery.cli.fix.reprocess:reprocess",
            "headrace reprocess pipelines.yaml --buckets 2026-11-20T05..2026-11-20T07 --from raw",
            "Make the rows of buckets anew by the rules of today",
        ),
        Command(
            "rewind",
            "headrace.recovery.cli.fix.rewind:rewind",
            "headrace rewind pipelines.yaml --to 2026-11-20T05:00Z",
            "Take back what landed after a version of the table",
        ),
        Command(
            "delete-rows",
            "headrace.writer.cli.fix.delete_rows:delete_rows",
            'headrace delete-rows pipelines.yaml --where "user_id = 42"',
            "Take rows out by their keys, for good",
        ),
    ),
    "Maintain": (
        Command(
            "compact",
            "headrace.writer.cli.maintain.compact:compact",
            "headrace compact pipelines.yaml --bucket 2026-11-20T05",
            "Merge the small files of buckets",
        ),
        Command(
            "seal",
            "headrace.writer.cli.maintain.seal:seal",
            "headrace seal pipelines.yaml --until 2026-11-20T06:00Z",
            "Close and seal buckets by hand",
        ),
        Command(
            "retention",
            "headrace.writer.cli.maintain.retention:retention",
            "headrace retention pipelines.yaml",
            "Drop the buckets that are older than `retention`",
        ),
        Command(
            "vacuum",
            "headrace.writer.cli.maintain.vacuum:vacuum",
            "headrace vacuum pipelines.yaml",
            "Find and remove files that nothing needs",
        ),
        CommandGroup(
            "keys",
            "Check and rotate the keys of fields that are protected",
            (
                Command("check", "headrace.writer.cli.maintain.keys:check", "headrace keys check pipelines.yaml"),
                Command("rotate", "headrace.writer.cli.maintain.keys:rotate", "headrace keys rotate pipelines.yaml"),
            ),
        ),
        CommandGroup(
            "privacy",
            "Show the fields that a table's log protects; release them",
            (
                Command(
                    "list", "headrace.writer.cli.maintain.privacy:list_paths", "headrace privacy list pipelines.yaml"
                ),
                Command(
                    "release",
                    "headrace.writer.cli.maintain.privacy:release",
                    "headrace privacy release pipelines.yaml --record com.shop.Order --path user.email",
                ),
            ),
        ),
        CommandGroup(
            "table",
            "Adopt a table, or accept what another client changed",
            (
                Command(
                    "adopt",
                    "headrace.writer.cli.maintain.table_adopt:adopt",
                    "headrace table adopt pipelines.yaml --pipeline clicks",
                ),
                Command(
                    "accept",
                    "headrace.writer.cli.maintain.table_adopt:accept",
                    "headrace table accept pipelines.yaml --pipeline clicks",
                ),
            ),
        ),
        Command(
            "convert",
            "headrace.writer.cli.maintain.convert:convert",
            "headrace convert pipelines.yaml --pipeline clicks",
            "Make Iceberg tables of Delta or Parquet tables",
        ),
        Command(
            "shadow",
            "headrace.writer.cli.maintain.shadow:shadow",
            "headrace shadow pipelines.yaml --with new.yaml --location /lake/clicks_v2",
            "Write a table's offsets to a second one, by other rules",
        ),
        Command(
            "promote",
            "headrace.writer.cli.maintain.promote:promote",
            "headrace promote pipelines.yaml --with new.yaml --shadow /lake/clicks_v2",
            "Put a shadow in the place of its table",
        ),
        CommandGroup(
            "hooks",
            "Show, deliver or skip notifications of sealed buckets",
            (
                Command("list", "headrace.writer.cli.maintain.hooks:list_", "headrace hooks list pipelines.yaml"),
                Command(
                    "run", "headrace.writer.cli.maintain.hooks:run", "headrace hooks run pipelines.yaml --hook druid"
                ),
                Command(
                    "skip",
                    "headrace.writer.cli.maintain.hooks:skip",
                    "headrace hooks skip pipelines.yaml --hook druid --bucket 2026-11-20T05",
                ),
            ),
        ),
        CommandGroup(
            "schema",
            "Show what a schema does to the table; accept changed ids",
            (
                Command(
                    "plan",
                    "headrace.writer.cli.maintain.schema_plan:plan",
                    "headrace schema plan pipelines.yaml --file click-v2.avsc",
                ),
                Command(
                    "accept",
                    "headrace.writer.cli.maintain.schema_accept:accept",
                    "headrace schema accept pipelines.yaml --id 7",
                ),
            ),
        ),
    ),
    "Recover": (
        CommandGroup(
            "supervisor",
            "Run the writer and start it again when it fails",
            (
                Command(
                    "run", "headrace.recovery.cli.recover.supervisor:run", "headrace supervisor run pipelines.yaml"
                ),
                Command(
                    "explain",
                    "headrace.recovery.cli.recover.supervisor:explain",
                    "headrace supervisor explain pipelines.yaml",
                ),
            ),
        ),
        Command(
            "doctor",
            "headrace.recovery.cli.recover.doctor:doctor",
            "headrace doctor --checkpoint s3://bucket/checkpoints/query --bootstrap-servers broker-1:9092",
            "Examine Spark's checkpoints",
        ),
        CommandGroup(
            "topic",
            "Go on with topics that moved to another cluster or id",
            (
                Command(
                    "adopt",
                    "headrace.writer.cli.recover.topic_adopt:adopt",
                    "headrace topic adopt pipelines.yaml --pipeline clicks",
                ),
            ),
        ),
    ),
    "Scale": (
        Command(
            "size",
            "headrace.writer.cli.scale.size:size",
            "headrace size pipelines.yaml --events-per-second 50000",
            "Compute cores, memory and files for a topic's traffic",
        ),
        CommandGroup(
            "autoscaler",
            "Scale a driver's executors by its lag, or explain how",
            (
                Command(
                    "run",
                    "headrace.autoscaler.cli:run",
                    "headrace autoscaler run pipelines.yaml --set utilization_target=0.7",
                ),
                Command(
                    "explain",
                    "headrace.autoscaler.cli:explain",
                    "headrace autoscaler explain pipelines.yaml --save facts.json",
                ),
            ),
        ),
        Command(
            "simulate",
            "headrace.bench.simulation.cli:simulate",
            "headrace simulate --trace day --set utilization_target=0.7",
            "Play days of traffic against a scaling policy",
        ),
    ),
    "Measure": (
        Command(
            "bench",
            "headrace.bench.cli:bench",
            "headrace bench --events 10M --repeats 3 --json bench.json",
            "Measure the writer on this machine, beside plain PySpark",
        ),
        Command(
            "chaos",
            "headrace.bench.chaos.cli:chaos",
            "headrace chaos --minutes 5 --seed 7",
            "Do faults to a stack on this machine, and judge the lake",
        ),
    ),
}


def examples() -> Iterator[tuple[str, str]]:
    """Yield the example of each command, by all its words: of `dlq list`, too."""
    for entries in COMMANDS.values():
        for entry in entries:
            if isinstance(entry, Command):
                yield entry.name, entry.example
            else:
                for command in entry.commands:
                    yield f"{entry.name} {command.name}", command.example
