"""The operator protocol (`operator`), the class of each kind (`registry`), and the operators; used by the task."""
