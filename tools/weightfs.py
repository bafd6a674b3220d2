# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of weightfs, from Python.

    import weightfs
    weightfs.publish("out/checkpoint-100", "s3://bucket/run", version=100)
    weightfs.publish(model.state_dict(), "hf://buckets/me/run")

publish() takes a path, or a state: a mapping of names to torch tensors or numpy arrays.  A state is
written to the program's standard input as a safetensors stream, a tensor at a time: tensors on
the CPU go out from where they lie, without a copy; one that is on a device, or not contiguous, is
copied alone.  Options are those of `weightfs publish`: anchor=True is --anchor, anchor_every=20 is
--anchor-every 20.  The result has what --json prints: version, kind, bytes and more.

wait() and version() are for whoever reads: the versions of a mount.

Errors are weightfs.Error with the program's sentence.  The program is found by the variable
WEIGHTFS, in PATH, or beside this file's installation.  Nothing but the standard library is needed.
"""

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import SimpleNamespace

__all__ = ["Error", "Timeout", "publish", "stream", "version", "wait"]

# By the last part of str(dtype) in torch and in numpy (with ml_dtypes): name, bytes.
_DTYPES = {
    "bool": ("BOOL", 1), "uint8": ("U8", 1), "int8": ("I8", 1),
    "float8_e5m2": ("F8_E5M2", 1), "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1), "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1), "float4_e2m1fn_x2": ("F4", 1),
    "int16": ("I16", 2), "uint16": ("U16", 2), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
    "int32": ("I32", 4), "uint32": ("U32", 4), "float32": ("F32", 4),
    "complex64": ("C64", 8), "float64": ("F64", 8), "int64": ("I64", 8), "uint64": ("U64", 8),
}
_PIECE = 8 << 20


class Error(RuntimeError):
    """What the program says when it fails; `code` is its exit code."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


class Timeout(Error):
    """wait(): the version did not come in time."""


class _Tensor:
    """A tensor of any kind: its place in a safetensors file, and its bytes when they are needed."""

    def __init__(self, name, value):
        if hasattr(value, "full_tensor"):
            raise Error(f'tensor "{name}" is sharded over processes: gather it first '
                        "(full_tensor() on every rank)")
        if not str(getattr(value, "layout", "torch.strided")).endswith("strided"):
            raise Error(f'tensor "{name}" is not dense ({value.layout}): to_dense() makes it so')
        if getattr(value, "is_meta", False):
            raise Error(f'tensor "{name}" has no data (it is on the device "meta")')
        dtype = getattr(value, "dtype", "")
        kind = getattr(dtype, "name", None) or str(dtype).rsplit(".", 1)[-1]
        if kind not in _DTYPES or not hasattr(value, "shape"):
            raise Error(f'"{name}" is no tensor that safetensors can hold: '
                        f"{type(value).__name__} {kind}")
        self.name, self.value = name, value
        self.dtype, size = _DTYPES[kind]
        self.shape = [int(n) for n in value.shape]
        self.size = size
        for n in self.shape:
            self.size *= n
        if self.dtype == "F4":  # two elements a byte
            if not self.shape:
                raise Error(f'tensor "{name}" has half bytes and no dimension')
            self.shape[-1] *= 2
        self.width = size

    def write(self, put):
        """Hands the bytes, little-endian and in C order, to put()."""
        if self.size == 0:
            return
        value = self.value
        if hasattr(value, "data_ptr"):  # torch
            value = value.detach()
            if getattr(value, "is_conj", bool)() or getattr(value, "is_neg", bool)():
                value = value.resolve_conj().resolve_neg()
            if value.device.type != "cpu":
                value = value.cpu()
            value = value.contiguous()
            address, have = value.data_ptr(), value.numel() * value.element_size()
        else:  # numpy
            big = sys.byteorder == "big"
            if value.dtype.byteorder in ("<" if big else ">", "=" if big else ">"):
                value = value.astype(value.dtype.newbyteorder("<"))
            if not value.flags["C_CONTIGUOUS"]:
                value = value.copy(order="C")
            address, have = value.__array_interface__["data"][0], value.nbytes
        if have != self.size:
            raise Error(f'tensor "{self.name}" has {have} bytes, not the {self.size} of its shape')
        view = memoryview((ctypes.c_ubyte * have).from_address(address)).cast("B")
        for at in range(0, have, _PIECE):
            put(view[at:at + _PIECE])


def stream(state, put, metadata=None):
    """Writes a state as a safetensors file, piece by piece, through put(bytes-like).

    Tensors that share their memory (tied weights) are written under each of their names."""
    tensors = [_Tensor(str(name), value) for name, value in state.items()]
    if not tensors:
        raise Error("the state has no tensors")
    names = {t.name for t in tensors}
    if len(names) < len(tensors):
        raise Error("two keys of the state are the same when they are written as text")
    if "__metadata__" in names or any("\ud800" <= c <= "\udfff" for n in names for c in n):
        raise Error("a key of the state is no name that safetensors can hold")
    tensors.sort(key=lambda t: (-t.width, t.name))
    header, at = {"__metadata__": {"format": "pt", **(metadata or {})}}, 0
    for t in tensors:
        header[t.name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + t.size]}
        at += t.size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    put(struct.pack("<Q", len(text)) + text)
    for t in tensors:
        t.write(put)


def _program():
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(here, "..", "..", "bin", "weightfs")  # PREFIX/share/weightfs/
    found = os.environ.get("WEIGHTFS") or shutil.which("weightfs")
    if not found and os.access(beside, os.X_OK):
        found = beside
    if not found:
        raise Error("the program weightfs is not in PATH; the variable WEIGHTFS can name it")
    return found


def _options(options):
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return words


def _sentence(text, code):
    """The line that says why, out of what was printed on stderr."""
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("weightfs: ")]
    if ours or lines:
        return (ours or lines)[-1].removeprefix("weightfs: ")
    return f"weightfs ended with exit code {code}"


def _run(words, feed=None):
    """Runs the program; returns what it printed.  feed(put) writes its standard input."""
    command = [_program(), *words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(command, stdout=out, stderr=err, bufsize=0,
                                     stdin=subprocess.PIPE if feed else subprocess.DEVNULL)
        except OSError as e:
            raise Error(f"{command[0]} cannot be run: {e.strerror}") from e
        with child:
            try:
                if feed:
                    _feed(child, feed)
            except BaseException:
                child.kill()
                raise
            code = child.wait()
        out.seek(0)
        err.seek(0)
        if code != 0:
            kind = Timeout if code == 3 else Error
            raise kind(_sentence(err.read().decode(errors="replace"), code), code)
        return out.read().decode()


def _feed(child, feed):
    """Writes all of it, or as much as the program wants; its exit code says why no more."""
    def put(piece):
        view = memoryview(piece)
        while len(view):
            view = view[child.stdin.write(view):]

    try:
        feed(put)
        child.stdin.close()
    except BrokenPipeError:
        child.stdin.close()


def publish(path_or_state, dest, **options):
    """Publishes a checkpoint (a path) or a state (a mapping of tensors) as the next version.

    Options are those of `weightfs publish`, with '_' for '-'.  Returns an object with version,
    kind ("anchor", "delta", "unchanged" or "already there"), bytes, and all else that --json
    tells."""
    words = ["publish", "--json", *_options(options), "--"]
    if isinstance(path_or_state, Mapping):
        text = _run([*words, "-", os.fspath(dest)], lambda put: stream(path_or_state, put))
    else:
        text = _run([*words, os.fspath(path_or_state), os.fspath(dest)])
    try:
        return SimpleNamespace(**json.loads(text.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        raise Error(f"{_program()} printed no report: is it the program weightfs?") from None


def wait(mount, version=None, after=None, timeout=None):
    """Sleeps until the mount shows a version (this one or a later; one after another), and returns
    its number.  Raises Timeout after `timeout` seconds."""
    words = _options({"version": version, "after": after, "timeout": timeout})
    return int(_run(["wait", *words, "--", os.fspath(mount)]))


def version(mount):
    """The version that a mount shows now; 0 before the first."""
    try:
        with open(os.path.join(mount, ".weightfs", "version"), encoding="ascii") as f:
            return int(f.read())
    except OSError as e:
        raise Error(f"{mount} is no mount of weightfs: {e.strerror}") from e
