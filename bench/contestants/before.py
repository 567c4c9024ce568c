"""Onceflow of another checkout: the same contestant, with that package in the path."""

from bench.contestants.onceflow import CONTESTANT

__all__ = ["CONTESTANT"]
