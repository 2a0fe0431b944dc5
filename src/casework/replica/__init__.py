"""Replicas: a stream in an SQLite file of one's own, which works offline and syncs with a relay.

``Replica`` is the client; ``file`` its file, ``transport`` how it speaks to a relay. The standard library is enough.
"""

from casework.replica.answers import RelayRefused
from casework.replica.file import Difference
from casework.replica.replica import PushReport, Replica

__all__ = ["Difference", "PushReport", "RelayRefused", "Replica"]
