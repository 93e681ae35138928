"""What a host's objects are about, which are unlike their kind, and what makes two alike."""
