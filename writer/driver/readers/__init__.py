"""How the records of a batch come to its tasks: fetched by the tasks themselves, or by Spark."""
