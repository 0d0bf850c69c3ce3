"""Limits inside the container: C sources of libvgpu.so, and the layout of its shared region for Python."""
