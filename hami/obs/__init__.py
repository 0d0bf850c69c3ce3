"""Logging set-up and metric names."""
