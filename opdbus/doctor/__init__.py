"""What could keep op-dbus from working here, checked one by one, each with what to do about it."""
