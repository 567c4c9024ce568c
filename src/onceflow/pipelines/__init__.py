"""The ready pipelines: each a table of stages with handlers, on the public API only."""
