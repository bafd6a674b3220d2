"""Fireworks' own encoder, run by test_peers.py in a process of its own.

    peer_fireworks.py FORMAT SRC DST OUT...

Compresses what the checkpoint DST changes in the checkpoint SRC, two directories, into OUT; as
often as there are four such words, since to begin takes longest.
"""

import sys

from fireworks_delta_compression import delta_compress_dirs

for kind, src, dst, out in zip(*[iter(sys.argv[1:])] * 4):
    delta_compress_dirs(src, dst, out, kind)
