"""The connection to a message bus: bytes, messages, values and open files."""
