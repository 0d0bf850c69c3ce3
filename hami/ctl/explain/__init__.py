"""`hami explain`: why a pod fits or not, from a cluster or from a saved dump."""
