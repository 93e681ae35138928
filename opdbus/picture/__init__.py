"""A host's objects as a picture in two dimensions, where near means alike."""
