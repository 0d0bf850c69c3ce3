"""All API-server I/O."""
