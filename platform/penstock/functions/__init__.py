"""Classes that users derive or declare: process functions, states, triggers, evictors; bound by `operators`."""
