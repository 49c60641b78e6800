"""The compiled parts of reader and sinks, loaded if available; named in the specs' `preload`.

The workers' template imports it before it forks, so that no worker loads or compiles anything later. Starts no thread.
"""

from __future__ import annotations

import contextlib

__all__: list[str] = []

with contextlib.suppress(ImportError):  # otherwise the plain classes are used, which load quickly
    from penstock_connectors.formats import json_decode, json_encode
    from penstock_connectors.kafka.client import _kernels
    from penstock_connectors.kafka.read import fetch_fast
    from penstock_connectors.kafka.write import producer_fast

    json_decode.warm()
    json_encode.warm()
    _kernels.warm()
    __all__ += ["fetch_fast", "producer_fast"]
