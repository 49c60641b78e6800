"""What a user's own tests need: servers, harnesses and clusters; nothing outside the command line imports from here."""
