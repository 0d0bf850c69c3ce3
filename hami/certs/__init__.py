"""Certificates of the webhook and extender: make, reload, publish."""
