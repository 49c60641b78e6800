"""Sources and sinks for penstock jobs; each connector is a sub-package that sees only the connector SPI.

`generated` is what the generators share.
"""
