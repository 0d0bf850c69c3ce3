"""The node layer: our device plugin under a real kubelet, containerd and runc. Needs root and Go."""
