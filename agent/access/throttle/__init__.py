"""The throttle admits requests for answers by concurrency, rate and quota."""
