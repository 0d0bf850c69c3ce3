"""Containers of the embedded kubelet as real processes, under the limiter, over a stand-in driver.

`toolkit.prepare` builds what they need or says what is missing; `host.NodeHost` is the node's disk and cards;
`runner.ProcessRunner` is the container runtime. Without a toolkit the kubelet's `SimulatedRunner` stays.
"""
