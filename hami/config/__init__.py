"""Settings of each process and the device configuration, validated."""
