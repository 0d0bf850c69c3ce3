"""Scripts for a machine with a real GPU; they run on the stand-in driver everywhere else."""
