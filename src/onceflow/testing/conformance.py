"""The behaviour suite: what every store must do, as tests that anybody's store can run.

    # conftest.py
    @pytest.fixture
    def make_store(tmp_path):
        return lambda clock: MyStore(tmp_path / "test.db", clock=clock)

    # test_my_store.py
    from onceflow.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance): ...

The tests are `async def`: run them with pytest-asyncio in its auto mode, and ask pytest to explain
their assertions with `pytest.register_assert_rewrite("onceflow.testing")` before anything imports
it. Time is a fake clock; nothing sleeps.
"""

from __future__ import annotations

from onceflow.testing.rig import MakeStore, Rig
from onceflow.testing.suite_claim import ClaimSuite
from onceflow.testing.suite_finish import FinishSuite
from onceflow.testing.suite_lease import LeaseSuite
from onceflow.testing.suite_operate import OperateSuite
from onceflow.testing.suite_race import RaceSuite
from onceflow.testing.suite_run import RunSuite
from onceflow.testing.suite_spread import SpreadSuite

__all__ = ["MakeStore", "Rig", "StoreConformance"]


class StoreConformance(
    ClaimSuite, FinishSuite, LeaseSuite, RunSuite, SpreadSuite, OperateSuite, RaceSuite
):
    """Every test of the suite. A subclass needs the fixture `make_store`, nothing else."""
