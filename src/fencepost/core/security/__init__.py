"""Identity and permissions of a client: rules without I/O.

principal.py            the authenticated identity of a connection
certificate_name.py     a certificate's subject, as Kafka writes it, and the principal's name that follows from it
acls.py                 ACLs, and the decisions that follow from them
access.py               the permissions that each API checks
audit_events.py         the events of the audit log, and their lines
guessing.py             the pace of logins after failures
credentials.py          what the server keeps instead of a password
"""
