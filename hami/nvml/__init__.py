"""The only importer of pynvml, and its profile-driven stand-in."""
