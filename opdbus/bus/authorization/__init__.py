"""Authorization of callers for methods: by root, the group, and polkit."""
