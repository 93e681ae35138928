"""The D-Bus interface of op-dbus: objects, methods, properties, signals and jobs."""
