"""The throttle: who may ask for an answer now, by requests at once, requests in a time, and quota."""
