"""Commands that compute what a writer needs."""
