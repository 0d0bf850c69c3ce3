"""NVIDIA: admission, requests, registration, card checks and container edits."""
