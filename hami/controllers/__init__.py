"""Objects that change at people's speed (device configuration, certificate, webhook configuration), by kopf."""
