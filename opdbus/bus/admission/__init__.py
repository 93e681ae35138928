"""How much each caller may ask for at once, and which call runs next."""
