"""HTTP in: webhook, extender, ops. Bytes in, bytes out."""
