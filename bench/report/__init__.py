"""A run's figures for people: tables in the terminal, and a picture."""
