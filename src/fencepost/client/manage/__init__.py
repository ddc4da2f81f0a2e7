"""Administration behind `Admin`: groups, transactions, durable topics, and the values that it returns."""
