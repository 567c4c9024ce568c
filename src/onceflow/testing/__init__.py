"""The public test kit: a clock to move, scripted clients, and the suite that every store passes.

from onceflow.testing import FakeClock
from onceflow.testing.conformance import StoreConformance
"""

from onceflow.testing.clock import FakeClock

__all__ = ["FakeClock"]
