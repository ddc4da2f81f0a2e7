"""Identity and permissions of a client: rules without I/O.

principal.py            the authenticated identity of a connection
distinguished_name.py   the subject of a certificate, as Kafka writes it
acls.py                 ACLs, and the decisions that follow from them
access.py               the permissions that each API checks
audit_events.py         the events of the audit log, and their lines
floods.py               a limit on reports of refusals
guessing.py             the pace of logins after failures
credentials.py          what the server keeps instead of a password
principal_rules.py      Kafka's rules from a certificate's subject to a principal's name
"""
