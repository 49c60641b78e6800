"""The REST API: Flink's paths and field names over the dispatcher, and our own under `/v1/penstock`."""
