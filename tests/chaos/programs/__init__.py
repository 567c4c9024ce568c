"""Pipelines that the scenarios give to real workers, each a FILE.py of its own."""
