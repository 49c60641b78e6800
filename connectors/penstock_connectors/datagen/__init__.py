"""A generator of orders: the same rows for the same settings, for any reader and after any resume."""

from penstock_connectors.datagen.source import ORDER_SCHEMA, DatagenSource, DatagenSourceFactory, OrderPattern, orders

__all__ = ["ORDER_SCHEMA", "DatagenSource", "DatagenSourceFactory", "OrderPattern", "orders"]
