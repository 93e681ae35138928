"""Which callers may call which methods: root, the group, polkit."""
