"""State on the local disk; used by tables whose keys leave memory."""
