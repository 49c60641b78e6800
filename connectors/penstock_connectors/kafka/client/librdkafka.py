"""The C interface of librdkafka, found inside the confluent-kafka extension; only its public, stable functions.

`fetch_fast` and `producer_fast` use it: messages and rows move between Arrow buffers and librdkafka without a Python
object each. Its import fails with ImportError where this cannot work (other platforms, a wheel without the symbols):
callers then use confluent-kafka's classes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

import confluent_kafka.cimpl as extension
import numpy as np

from penstock.core.errors import ConnectorError

if sys.platform not in {"linux", "darwin"} or ctypes.sizeof(c_void_p) != 8:
    msg = f"librdkafka is used through its C interface on 64-bit Linux and macOS only, not on {sys.platform}"
    raise ImportError(msg)
# dlsym on the extension also finds its linked library, without guessing a path
LIBRARY = ctypes.CDLL(extension.__file__)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    try:
        function = LIBRARY[name]
    except AttributeError as error:
        raise ImportError(f"this confluent-kafka does not export {name}") from error
    function.restype, function.argtypes = result, list(arguments)
    return function


conf_new = _function("rd_kafka_conf_new", c_void_p)
conf_set = _function("rd_kafka_conf_set", c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)
conf_dump = _function("rd_kafka_conf_dump", ctypes.POINTER(c_char_p), c_void_p, c_void_p)
conf_dump_free = _function("rd_kafka_conf_dump_free", None, c_void_p, c_size_t)
conf_set_events = _function("rd_kafka_conf_set_events", None, c_void_p, c_int)
conf_set_log_callback = _function("rd_kafka_conf_set_log_cb", None, c_void_p, c_void_p)
conf_destroy = _function("rd_kafka_conf_destroy", None, c_void_p)
kafka_new = _function("rd_kafka_new", c_void_p, c_int, c_void_p, c_char_p, c_size_t)
kafka_destroy = _function("rd_kafka_destroy", None, c_void_p)
destroy_flags = _function("rd_kafka_destroy_flags", None, c_void_p, c_int)
err2str = _function("rd_kafka_err2str", c_char_p, c_int)
last_error = _function("rd_kafka_last_error", c_int)
list_new = _function("rd_kafka_topic_partition_list_new", c_void_p, c_int)
list_destroy = _function("rd_kafka_topic_partition_list_destroy", None, c_void_p)
list_add = _function("rd_kafka_topic_partition_list_add", c_void_p, c_void_p, c_char_p, c_int32)
list_set_offset = _function("rd_kafka_topic_partition_list_set_offset", c_int, c_void_p, c_char_p, c_int32, c_int64)
incremental_assign = _function("rd_kafka_incremental_assign", c_void_p, c_void_p, c_void_p)
incremental_unassign = _function("rd_kafka_incremental_unassign", c_void_p, c_void_p, c_void_p)
pause_partitions = _function("rd_kafka_pause_partitions", c_int, c_void_p, c_void_p)
resume_partitions = _function("rd_kafka_resume_partitions", c_int, c_void_p, c_void_p)
watermark_offsets = _function("rd_kafka_get_watermark_offsets", c_int, c_void_p, c_char_p, c_int32, c_void_p, c_void_p)
commit_queue = _function("rd_kafka_commit_queue", c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
queue_get_consumer = _function("rd_kafka_queue_get_consumer", c_void_p, c_void_p)
queue_get_main = _function("rd_kafka_queue_get_main", c_void_p, c_void_p)
queue_destroy = _function("rd_kafka_queue_destroy", None, c_void_p)
queue_poll = _function("rd_kafka_queue_poll", c_void_p, c_void_p, c_int)
queue_io_event_enable = _function("rd_kafka_queue_io_event_enable", None, c_void_p, c_int, c_char_p, c_size_t)
consume_batch_queue = _function("rd_kafka_consume_batch_queue", c_ssize_t, c_void_p, c_int, c_void_p, c_size_t)
consumer_close = _function("rd_kafka_consumer_close", c_int, c_void_p)
message_headers = _function("rd_kafka_message_headers", c_int, c_void_p, c_void_p)
message_timestamp = _function("rd_kafka_message_timestamp", c_int64, c_void_p, c_void_p)
header_get_all = _function("rd_kafka_header_get_all", c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)
topic_new = _function("rd_kafka_topic_new", c_void_p, c_void_p, c_char_p, c_void_p)
topic_destroy = _function("rd_kafka_topic_destroy", None, c_void_p)
topic_name = _function("rd_kafka_topic_name", c_char_p, c_void_p)
produce_batch = _function("rd_kafka_produce_batch", c_int, c_void_p, c_int32, c_int, c_void_p, c_int)
flush = _function("rd_kafka_flush", c_int, c_void_p, c_int)
purge = _function("rd_kafka_purge", c_int, c_void_p, c_int)
out_queue_length = _function("rd_kafka_outq_len", c_int, c_void_p)
fatal_error = _function("rd_kafka_fatal_error", c_int, c_void_p, c_char_p, c_size_t)
metadata = _function("rd_kafka_metadata", c_int, c_void_p, c_int, c_void_p, c_void_p, c_int)
metadata_destroy = _function("rd_kafka_metadata_destroy", None, c_void_p)
init_transactions = _function("rd_kafka_init_transactions", c_void_p, c_void_p, c_int)
begin_transaction = _function("rd_kafka_begin_transaction", c_void_p, c_void_p)
commit_transaction = _function("rd_kafka_commit_transaction", c_void_p, c_void_p, c_int)
abort_transaction = _function("rd_kafka_abort_transaction", c_void_p, c_void_p, c_int)
send_offsets = _function("rd_kafka_send_offsets_to_transaction", c_void_p, c_void_p, c_void_p, c_void_p, c_int)
group_metadata_new = _function("rd_kafka_consumer_group_metadata_new", c_void_p, c_char_p)
group_metadata_destroy = _function("rd_kafka_consumer_group_metadata_destroy", None, c_void_p)
error_code = _function("rd_kafka_error_code", c_int, c_void_p)
error_string = _function("rd_kafka_error_string", c_char_p, c_void_p)
error_is_fatal = _function("rd_kafka_error_is_fatal", c_int, c_void_p)
error_is_retriable = _function("rd_kafka_error_is_retriable", c_int, c_void_p)
error_requires_abort = _function("rd_kafka_error_txn_requires_abort", c_int, c_void_p)
error_destroy = _function("rd_kafka_error_destroy", None, c_void_p)
event_type = _function("rd_kafka_event_type", c_int, c_void_p)
event_error = _function("rd_kafka_event_error", c_int, c_void_p)
event_error_string = _function("rd_kafka_event_error_string", c_char_p, c_void_p)
event_stats = _function("rd_kafka_event_stats", c_char_p, c_void_p)
event_message_count = _function("rd_kafka_event_message_count", c_size_t, c_void_p)
event_message_next = _function("rd_kafka_event_message_next", c_void_p, c_void_p)
event_destroy = _function("rd_kafka_event_destroy", None, c_void_p)
# the kernels resolve them by these names
for _name in ("rd_kafka_message_timestamp", "rd_kafka_message_destroy"):
    _function(_name, None)

PRODUCER, CONSUMER = 0, 1
EVENT_DELIVERY, EVENT_ERROR, EVENT_COMMIT, EVENT_STATS = 0x1, 0x8, 0x20, 0x40
FLAG_COPY, FLAG_PARTITION = 0x2, 0x8
PURGE_QUEUE, PURGE_INFLIGHT = 0x1, 0x2
ERR_PARTITION_EOF, ERR_QUEUE_FULL, ERR_TIMED_OUT, ERR_STATE = -191, -184, -185, -172
ERR_UNKNOWN_PARTITION, ERR_UNKNOWN_TOPIC = -190, -188
ERR_TOO_LARGE = 10
ERR_ALL_BROKERS_DOWN, ERR_TRANSPORT, ERR_RESOLVE, ERR_FATAL, ERR_FENCED, ERR_AUTO_OFFSET_RESET = (
    -187,
    -195,
    -193,
    -150,
    -144,
    -140,
)

#: `rd_kafka_message_t`: a public struct, the same since librdkafka 0.9.
MESSAGE = np.dtype(
    [
        ("error", "i4"),
        ("_0", "i4"),
        ("topic", "i8"),
        ("partition", "i4"),
        ("_1", "i4"),
        ("payload", "i8"),
        ("size", "i8"),
        ("key", "i8"),
        ("key_size", "i8"),
        ("offset", "i8"),
        ("private", "i8"),
    ]
)
MESSAGE_BYTES = 72


def new_client(kind: int, properties: Mapping[str, str], events: int) -> int:
    """Return the address of a new client; its events are polled, and it never calls back into Python.

    Raises:
        ConnectorError: a property is unknown or has a wrong value.
    """
    conf = conf_new()
    text = ctypes.create_string_buffer(512)
    for name, value in properties.items():
        if conf_set(conf, name.encode(), value.encode(), text, len(text)) != 0:
            conf_destroy(conf)
            raise ConnectorError(
                f"Kafka property: {text.value.decode(errors='replace')}", hint="see librdkafka's CONFIGURATION.md"
            )
    conf_set_log_callback(conf, None)  # important log lines also come as events
    conf_set_events(conf, events | EVENT_ERROR)
    client = kafka_new(kind, conf, text, len(text))
    if not client:
        conf_destroy(conf)
        raise ConnectorError(f"the Kafka client cannot start: {text.value.decode(errors='replace')}")
    return int(client)


def property_fault(name: str, value: str) -> str:
    """Return why librdkafka does not take a property; empty if it does."""
    conf, text = conf_new(), ctypes.create_string_buffer(512)
    try:
        taken = conf_set(conf, name.encode(), value.encode(), text, len(text)) == 0
    finally:
        conf_destroy(conf)
    return "" if taken else text.value.decode(errors="replace")


def property_names() -> list[str]:
    """Return the names of all properties that have a default."""
    conf, count = conf_new(), c_size_t()
    found = conf_dump(conf, ctypes.byref(count))
    try:
        return [found[place].decode() for place in range(0, count.value, 2)]
    finally:
        conf_dump_free(found, count.value)
        conf_destroy(conf)


def error_text(code: int) -> str:
    """Return librdkafka's text for an error code."""
    return str(err2str(code).decode(errors="replace"))


class PartitionList:
    """A `rd_kafka_topic_partition_list_t` for the duration of a `with` block."""

    def __init__(self, items: list[tuple[str, int, int | None]]) -> None:
        """Take `items`, each (topic, partition, offset)."""
        self._items = items
        self._address = 0

    def __enter__(self) -> int:
        """Return the list's address."""
        self._address = list_new(len(self._items))
        for topic, partition, offset in self._items:
            list_add(self._address, topic.encode(), partition)
            if offset is not None:
                list_set_offset(self._address, topic.encode(), partition, offset)
        return self._address

    def __exit__(self, *_exc: object) -> None:
        """Free it."""
        list_destroy(self._address)
