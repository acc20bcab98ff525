"""The throttle: who may ask for an answer now, by requests at once, requests in a time, and quota (G6; E 5.3)."""
