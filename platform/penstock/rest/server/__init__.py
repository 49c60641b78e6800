"""The application, its door, access rules and HTTP server; started by the JobManager's process."""
