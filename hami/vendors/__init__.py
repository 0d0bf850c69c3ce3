"""Pure per-vendor rules behind `core.device_type.DeviceType`; one package or file a vendor."""
