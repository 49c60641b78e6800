"""Keyed state: hot tables over cold stores, frozen at barriers into segments of one snapshot format."""
