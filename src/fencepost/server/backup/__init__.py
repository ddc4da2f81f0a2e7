"""Backups of a running server, restoring them, and checking a data directory.

pins.py                      on the server: the data of one moment, linked (asked for on `process/control.py`)
point.py                     the data of one moment, of a running server or of a stopped one
manifest.py                  the files of a backup, with sizes and checksums
copying.py                   copies with checksums, past the page cache
folder.py                    backups in a folder, each reusing files of the one before
restoring.py                 a new data directory from a backup; the store of a data directory without a server
checking.py                  all files of a stopped server's data directory
"""
