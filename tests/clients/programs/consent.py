"""The browser that a client opens: allows what the page at an address asks for, with a token, and goes back."""

import re
import sys
from threading import Event
from urllib.error import URLError
from urllib.parse import urlencode, urljoin
from urllib.request import urlopen

token, address = sys.argv[1:]
found = re.search(r'name="request" value="([^"]+)"', urlopen(address).read().decode())
form = {"request": found[1] if found else "", "credential": token, "decision": "allow"}
for _ in range(100):
    try:
        urlopen(urljoin(address, "/authorize"), urlencode(form).encode()).read()
        break
    except URLError:  # the client does not listen yet: a person is slower
        Event().wait(0.1)
