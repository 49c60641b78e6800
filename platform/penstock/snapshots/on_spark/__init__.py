"""The same as Spark jobs, and Spark's data source of state; called by the CLI and by Spark."""
