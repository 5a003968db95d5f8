"""SQL statements, specifications and types for the engines that read the lake. No I/O."""
