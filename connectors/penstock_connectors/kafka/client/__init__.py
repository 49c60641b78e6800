"""Access to librdkafka and the broker's metadata; used by readers and writers."""
