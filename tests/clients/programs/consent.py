"""Stands for the browser: grants the consent page at an address with a token, and returns to the client."""

import re
import sys
from threading import Event
from urllib.error import URLError
from urllib.parse import urlencode, urljoin
from urllib.request import urlopen

token, address = sys.argv[1:]
match = re.search(r'name="request" value="([^"]+)"', urlopen(address).read().decode())
form = {"request": match[1] if match else "", "credential": token, "decision": "allow"}
for _ in range(100):
    try:
        urlopen(urljoin(address, "/authorize"), urlencode(form).encode()).read()
        break
    except URLError:  # the client does not listen yet
        Event().wait(0.1)
