"""The real control plane: etcd, kube-apiserver, controller-manager, kube-scheduler and kubectl built from source.

`build` makes the binaries, `controlplane` starts them, `components` adds ours (extender, webhook, device plugins
with a kubelet stand-in each), `up` is what `make control-plane` runs, and the tests use the fixtures of `conftest`.
"""
