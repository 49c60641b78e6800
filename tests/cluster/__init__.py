"""Tests from outside: real processes, a real Kafka and MinIO, SIGKILL; nothing here looks inside the engine."""
