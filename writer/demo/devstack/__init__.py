"""A broker and a registry on loopback, without Docker, for the demo, the bench and the tests."""
