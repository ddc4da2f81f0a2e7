"""Settings: what there is, where the values come from, and changing them while the server runs.

settings.py     the settings of a server
listener.py     those of one listener
addresses.py    HOST:PORT
loading.py      settings from flags, environment and file
reloading.py    apply a changed configuration to a running server
"""
