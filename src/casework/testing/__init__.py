"""For tests: virtual time for applications, and contract suites for whoever writes a backend or a store."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casework.testing.store_contract import ExecutionStoreContract
    from casework.testing.stream_contract import StreamStoreContract
    from casework.testing.virtual import TaskCall, VirtualApp

_WHERE = {
    "ExecutionStoreContract": "casework.testing.store_contract:ExecutionStoreContract",
    "StreamStoreContract": "casework.testing.stream_contract:StreamStoreContract",
    "TaskCall": "casework.testing.virtual:TaskCall",
    "VirtualApp": "casework.testing.virtual:VirtualApp",
}


def __getattr__(name: str) -> Any:
    try:
        module, _, attribute = _WHERE[name].partition(":")
    except KeyError:
        raise AttributeError(f"module 'casework.testing' has no attribute {name!r}") from None
    return getattr(importlib.import_module(module), attribute)


__all__ = ["ExecutionStoreContract", "StreamStoreContract", "TaskCall", "VirtualApp"]
