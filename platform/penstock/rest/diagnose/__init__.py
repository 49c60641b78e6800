"""Diagnosis of slow and unhealthy jobs, for the web interface; called by the routes."""
