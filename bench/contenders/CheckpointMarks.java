import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;

/** Counts the events of each checkpoint over all subtasks, and prints a mark when a checkpoint is complete. */
final class CheckpointMarks {
  private final PrintStream out;
  private final Map<Integer, TreeMap<Long, Long>> eventsByCheckpoint = new HashMap<>();
  private long markedEvents;

  CheckpointMarks(PrintStream out) {
    this.out = out;
  }

  /** Takes how many events a subtask carried from its start to its part of a checkpoint. */
  synchronized void add(int subtask, long checkpoint, long events) {
    eventsByCheckpoint.computeIfAbsent(subtask, ignored -> new TreeMap<>()).put(checkpoint, events);
  }

  /**
   * Prints the events up to this checkpoint that no mark has yet. Each subtask calls it; the first call prints.
   *
   * <p>A subtask that ended before this checkpoint has no part of it, so the events of its last one count.
   */
  synchronized void complete(long checkpoint) {
    long events = 0;
    for (TreeMap<Long, Long> checkpoints : eventsByCheckpoint.values()) {
      Map.Entry<Long, Long> last = checkpoints.floorEntry(checkpoint);
      if (last != null) {
        events += last.getValue();
      }
    }
    if (events > markedEvents) {
      out.println("batch_committed batch=" + checkpoint + " read=" + (events - markedEvents));
      markedEvents = events;
    }
  }
}
