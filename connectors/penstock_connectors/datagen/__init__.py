"""A generator of orders: the same rows for the same settings, whoever reads them and wherever reading resumes."""

from penstock_connectors.datagen.orders import ORDER_SCHEMA, OrderPattern, orders
from penstock_connectors.datagen.source import DatagenSource, DatagenSourceFactory

__all__ = ["ORDER_SCHEMA", "DatagenSource", "DatagenSourceFactory", "OrderPattern", "orders"]
