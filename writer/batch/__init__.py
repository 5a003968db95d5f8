"""The steps of a micro-batch, in order: functions on Arrow tables, for a task, a preview and a test alike."""
