"""What keeps a job from being fast or healthy, for the web interface; called by the routes."""
