"""Classes that users derive from or declare: process functions, states, triggers, evictors; bound by `operators`."""
