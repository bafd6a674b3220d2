"""Fireworks' own encoder, run by test_peers.py in a process of its own.

    peer_fireworks.py FORMAT SRC DST OUT

Compresses what the checkpoint DST changes in the checkpoint SRC, two directories, into OUT.
"""

import sys

from fireworks_delta_compression import delta_compress_dirs

delta_compress_dirs(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[1])
