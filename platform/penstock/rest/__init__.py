"""The REST API: Flink's paths and field names over the dispatcher, and Penstock's own under `/v1/penstock`."""
