"""Servers, harnesses and clusters for users' tests; outside the tests only the command line imports from here."""
