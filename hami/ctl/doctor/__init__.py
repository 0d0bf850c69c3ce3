"""`hami doctor`: what is wrong with sharing in a cluster, seen from outside, and what to do. It writes nothing."""
