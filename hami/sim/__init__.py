"""The embedded cluster: stand-ins for the edges of our processes.

API server, kube-scheduler, kubelet and hardware profiles, honest where our processes can tell the difference and no
more. It is the world, not us: nothing of placement, web, deviceplugin, monitor or controllers is imported here
(design.md section 2). Start with `hami.sim.cluster.SimCluster`.
"""
