"""Writing snapshots: rows, other key groups, other keys; called by the CLI, Airflow and Spark."""
