"""What the engines that read the lake are told: statements, specifications, types. Nothing here asks anybody."""
