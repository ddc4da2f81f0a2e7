"""The HTTP port. Nothing of it is imported while the port is off.

port.py        uvicorn on the server's own loop, and requests that come through a proxy
app.py         the addresses, pages whose code is loaded by their first request, and: is the server ready?
access.py      who may see the server's state, and the sessions of people who logged in with the form
debug.py       everything that helps to find a fault
v1/            the server's state as JSON
console/       pages for people
"""
