"""What op-dbus offers on the bus: objects, methods, properties, signals and jobs."""
