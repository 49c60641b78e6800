"""Commands on checkpoints and savepoints."""
