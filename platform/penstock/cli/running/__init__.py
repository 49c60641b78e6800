"""Commands on running jobs."""
