"""headrace, a streaming warehouse writer. Its packages lie at the top of the repository, and are links here."""
