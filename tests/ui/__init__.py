"""The web interface in Chromium. A package, so that its browser and slow job end with its last test."""
