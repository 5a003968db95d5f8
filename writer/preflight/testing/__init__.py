"""Tests of a pipeline: records of a file through the steps, and what is expected of them. No server is asked."""
