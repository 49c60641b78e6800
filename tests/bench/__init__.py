"""Measurements run by hand; every one prints what it did and a JSON object at the end."""
