"""The clients under measurement, one module each, with a function per kind of job that the client can do."""
