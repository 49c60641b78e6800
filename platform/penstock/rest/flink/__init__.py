"""Documents of Flink's REST API, from the JobManager's views; called by the routes."""
