"""Formats: payload bytes of messages to typed Arrow columns and back; no client library, no I/O.

Used by the connectors (`penstock_connectors.kafka`): decoders return good rows and a list of bad ones, encoders one
payload per row.
"""
