"""The HTTP port. Nothing of it is imported while the port is off.

port.py        uvicorn on the server's own loop
app.py         the addresses, pages whose code is loaded by their first request, and: is the server ready?
first_page.py  logging in and out, and the page of a server without a console
forms.py       forms that a browser sends
debug.py       everything that helps to find a fault
proxied.py     requests that come through a proxy which ends TLS
access.py      who may see the server's state
sessions.py    people who logged in with the form
v1/            the server's state as JSON
console/       pages for people
"""
