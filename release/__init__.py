"""`make release`: builds, checks and describes what a version publishes, into dist/VERSION (docs/RELEASE.md)."""
