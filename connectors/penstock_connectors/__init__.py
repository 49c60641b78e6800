"""Sources and sinks for penstock jobs; each connector is a sub-package that uses only the connector SPI.

`generated` is the common part of the generators.
"""
