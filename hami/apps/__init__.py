"""Composition roots, one a process."""
