"""Kubelet gRPC and the node annotations that the scheduler reads."""
