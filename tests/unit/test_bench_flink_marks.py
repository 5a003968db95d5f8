"""The marks of the contender Flink: which events count when a checkpoint is complete. Its Java class runs here."""

import subprocess
from pathlib import Path

import pytest

from headrace.bench.contenders.flink import SOURCES
from headrace.writer.clients import java_artifacts

# Each line of the input is `add SUBTASK CHECKPOINT EVENTS` or `complete CHECKPOINT`.
_PLAYER = """
import java.util.Scanner;

final class Player {
  public static void main(String[] args) {
    CheckpointMarks marks = new CheckpointMarks(System.out);
    Scanner in = new Scanner(System.in);
    while (in.hasNext()) {
      if (in.next().equals("add")) {
        marks.add(in.nextInt(), in.nextLong(), in.nextLong());
      } else {
        marks.complete(in.nextLong());
      }
    }
  }
}
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("marks")
    player = directory / "Player.java"
    player.write_text(_PLAYER, encoding="utf-8")
    compiler = [str(java_artifacts.java()), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", str(directory)]
    subprocess.run([*compiler, str(SOURCES[1]), str(player)], check=True)
    return directory


def marks(classes: Path, *lines: str) -> list[str]:
    """Play what subtasks say. Returns the lines that are printed."""
    command = [str(java_artifacts.java()), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", str(classes), "Player"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_mark_stands_at_a_checkpoint_that_all_subtasks_completed(classes):
    lines = ["add 0 1 100", "add 1 1 80", "complete 1", "complete 1", "add 1 2 200", "add 0 2 300", "complete 2"]
    assert marks(classes, *lines[:2]) == [], "a part of a checkpoint is no mark"
    assert marks(classes, *lines) == ["batch_committed batch=1 read=180", "batch_committed batch=2 read=320"]


def test_events_of_a_later_checkpoint_do_not_count_for_an_earlier_one(classes):
    lines = ["add 0 1 100", "add 1 1 80", "add 0 2 300", "complete 1", "add 1 2 200", "complete 2", "complete 2"]
    assert marks(classes, *lines) == ["batch_committed batch=1 read=180", "batch_committed batch=2 read=320"]


def test_events_of_an_aborted_checkpoint_count_for_the_next(classes):
    lines = ["add 0 1 100", "add 1 1 80", "add 0 2 300", "add 1 3 240", "add 0 3 400", "complete 3"]
    assert marks(classes, *lines) == ["batch_committed batch=3 read=640"]


def test_a_subtask_that_ended_counts_with_its_last_checkpoint(classes):
    lines = ["add 0 1 100", "add 1 1 80", "complete 1", "complete 1", "add 0 2 150", "complete 2", "add 0 3 190"]
    assert marks(classes, *lines, "complete 3") == [
        "batch_committed batch=1 read=180",
        "batch_committed batch=2 read=50",
        "batch_committed batch=3 read=40",
    ]


def test_a_checkpoint_without_new_events_is_no_mark(classes):
    lines = ["complete 1", "add 0 2 5", "add 1 2 0", "complete 2", "add 0 3 5", "add 1 3 0", "complete 3"]
    assert marks(classes, *lines) == ["batch_committed batch=2 read=5"]
