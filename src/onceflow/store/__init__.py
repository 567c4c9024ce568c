"""The one door to durable state: the Store protocol and its two back ends."""
