"""What a CPU-second of the writer carries, beside the job a team would write first and the limit of the design."""
