"""Event logs, spans, profiles and live state of jobs for people; called by the dispatcher and REST."""
