"""For tests, ours and yours: a server as a fixture, files that fail, a clock wound by hand, a proxy that cuts lines."""
