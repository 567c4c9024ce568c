"""Onceflow beside raw SQL and its peers, measured in one run: `python -m bench`.

What is comparable between machines is a ratio, so the table prints ratios; what they depend on
(load, the time of one fsync) stands beside them. `docs/benchmarks.md` says what each row means.
"""
