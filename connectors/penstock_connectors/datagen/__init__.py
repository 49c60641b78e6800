"""A generator of orders: the same rows for the same settings, for any reader and after any resume."""

from penstock_connectors.datagen.orders import ORDER_SCHEMA, OrderPattern, orders
from penstock_connectors.datagen.source import DatagenSource, DatagenSourceFactory

__all__ = ["ORDER_SCHEMA", "DatagenSource", "DatagenSourceFactory", "OrderPattern", "orders"]
