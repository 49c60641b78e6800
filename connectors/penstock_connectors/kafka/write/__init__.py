"""The sink's side: producers, transactions, committers; called through `kafka.sink`."""
