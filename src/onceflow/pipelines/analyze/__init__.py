"""How assistants see a website: its profile, the questions it should answer, and what is said.

`not-started` -> `prompt-forming` -> `model-analysis` -> `completed`. The three results are
described in `shapes`; whatever shows them (a report, a page) needs nothing else.
"""

from onceflow.pipelines.analyze.pipeline import NAME, Analyze

__all__ = ["NAME", "Analyze"]
