"""Take items through staged pipelines, each stage exactly once."""

__version__ = "0.1.0"
