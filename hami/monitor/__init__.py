"""The node's monitor: what containers use by their shared regions, feedback to them, their folders cleared away."""
