"""The one behaviour suite, on both stores."""

from onceflow.testing.conformance import StoreConformance


class TestStore(StoreConformance):
    pass
