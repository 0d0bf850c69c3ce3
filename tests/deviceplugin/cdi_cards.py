"""Cards for CDI specifications, and the file of their kind."""

from __future__ import annotations

from hami.nvml.probe import CardFacts

CARDS = (CardFacts("GPU-a", 0, "T4", 1, minor=4), CardFacts("GPU-b", 1, "T4", 1, minor=5))
GPU_FILE = "k8s.device-plugin.nvidia.com-gpu.json"
