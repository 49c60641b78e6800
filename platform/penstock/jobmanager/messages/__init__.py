"""Values that the JobManager's parts exchange: commands, events, views, options; used by every other room."""
