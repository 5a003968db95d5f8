"""From the reports of tasks to one commit."""
