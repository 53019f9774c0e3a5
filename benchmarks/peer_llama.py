"""llama.cpp's own server over a GGUF file, from the package ``xllamacpp``: python peer_llama.py FILE PORT THREADS REQUESTS."""

from __future__ import annotations

import signal
import sys

import xllamacpp

path, port, threads, requests = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path, params.port = path, port
params.n_parallel, params.n_ctx = requests, 1024 * requests
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
signal.pause()
