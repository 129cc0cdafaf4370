"""A Penstock service in memory, for the tests of code that uses the client.

`FakePenstock` answers the same calls in the same way as a service, without a network: it passes
the same contract suite. Nothing is durable, and it knows the plain part of Avro only.
"""

from penstock_client.testing.deciders import FakeDecider
from penstock_client.testing.fake import FakePenstock

__all__ = ["FakeDecider", "FakePenstock"]
