"""Stand-ins for inference servers: the routes that `weightfs follow` uses, as the real ones have
them, with the state that those routes change and the rules that they hold.

A reload really reads the files at the path that it is given and keeps their checksum, so a test can
say which bytes an engine has.  Every server logs the calls it has understood in `calls`; the faults
of FakeServer (statuses, cuts, resets) and `gate()` (an answer that waits) make it misbehave.
"""

import hashlib
import json
import threading
from pathlib import Path

from lib.fake_server import Answer, FakeServer


def digest(path):
    """The checksum of the weights in a directory: names and bytes."""
    total = hashlib.sha256()
    files = sorted(Path(path).glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no safetensors in {path}")
    for file in files:
        total.update(file.name.encode())
        total.update(file.read_bytes())
    return total.hexdigest()


class Refusal(Exception):
    """An answer that is not 200."""

    def __init__(self, status, body):
        super().__init__(status)
        self.status, self.body = status, body


class Engine:
    """What the stand-ins share.  `routes`: {"METHOD /path": method}."""

    name = ""
    key_status = 401

    def __init__(self, key=None, without=(), port=0):
        self.key, self.without = key, set(without)
        self.calls, self.bodies = [], []
        self.gates, self.arrived = {}, {}
        self.paused, self.version = False, "default"
        self.path = self.loaded = None        # loaded: checksum, or "mixed"
        self.paused_at_load = []
        self.broken = 0                       # so many loads fail, leaving mixed weights
        self.fails = lambda path: False       # and so do those of which it says so
        self.server = FakeServer(self.handle, self.name)

    @property
    def url(self):
        """Where it listens."""
        return self.server.origin

    def close(self):
        """Goes away."""
        for gate in self.gates.values():
            gate.set()
        self.server.stop()

    def gate(self, path):
        """Requests to this path wait until the event that is returned is set; `arrived[path]` is
        set when one has come."""
        self.arrived[path] = threading.Event()
        self.gates[path] = threading.Event()
        return self.gates[path]

    def handle(self, request):
        """One request."""
        body = request.body or b""
        route = f"{request.method} {request.path}"
        handler = None if request.path in self.without else self.routes().get(route)
        if handler is None:
            return Answer(404, b'{"detail":"Not Found"}')
        given = request.headers.get("Authorization", "")
        if self.key and given != f"Bearer {self.key}":
            said = json.dumps({"error": f"not authorized: {given.removeprefix('Bearer ')}"})
            return Answer(self.key_status, said.encode())
        self.calls.append(request.path)
        try:
            data = json.loads(body) if body else None
        except ValueError:
            return Answer(400, b'{"detail":"JSON decode error"}')
        self.bodies.append((request.path, request.query, data))
        if request.path in self.gates:
            self.arrived[request.path].set()
            self.gates[request.path].wait()
        try:
            said = handler(request.query, data)
        except Refusal as refusal:
            return Answer(refusal.status, json.dumps(refusal.body).encode())
        return Answer(200, json.dumps(said).encode() if said is not None else b"",
                      (("Content-Type", "application/json"),))

    def routes(self):
        """The table."""
        raise NotImplementedError

    def load(self, path):
        """Reads the weights, as all ranks of an engine would; the path is the engine's from now
        on, whether it works or not."""
        self.path = path
        self.paused_at_load.append(self.paused)
        if self.broken or self.fails(path):
            self.broken = max(self.broken - 1, 0)
            self.loaded = "mixed"
            raise OSError("a rank failed half way")
        try:
            self.loaded = digest(path)
        except OSError:
            self.loaded = "mixed"
            raise

    def sent(self, path):
        """The bodies of the requests to a path."""
        return [data for where, _, data in self.bodies if where == path]


class Vllm(Engine):
    """vLLM with VLLM_SERVER_DEV_MODE=1."""

    name = "vllm"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.initialised = self.session = False
        self.updated = None
        self.prefix_cache = "fresh"

    def routes(self):
        return {
            "POST /pause": self.pause, "POST /resume": self.resume,
            "GET /is_paused": lambda q, d: {"is_paused": self.paused},
            "POST /collective_rpc": self.rpc,
            "POST /reset_prefix_cache": self.reset,
            "POST /init_weight_transfer_engine": self.init,
            "POST /start_weight_update": self.start,
            "POST /update_weights": self.update,
            "POST /finish_weight_update": self.finish,
            "POST /update_weight_version": self.tag,
            "GET /weight_info": lambda q, d: {"weight_version": self.version},
        }

    def pause(self, query, data):
        """Holds traffic."""
        if query.get("mode", "abort") not in ("abort", "wait", "keep"):
            raise Refusal(422, {"detail": [{"msg": "Input should be abort, wait or keep"}]})
        self.paused = True
        return {"status": "paused"}

    def resume(self, query, data):
        """Lets it in."""
        self.paused = False
        return {"status": "resumed"}

    def _read(self, path):
        self.prefix_cache = "stale"
        try:
            self.load(path)
        except OSError as error:
            raise Refusal(500, {"error": {"message": str(error)}}) from error

    def rpc(self, query, data):
        """collective_rpc."""
        if "method" not in data:
            raise Refusal(400, {"detail": "Missing 'method' in request body"})
        assert data["method"] == "reload_weights", data
        assert data["kwargs"]["is_checkpoint_format"] is True
        self._read(data["kwargs"]["weights_path"])
        return {"results": [None, None]}

    def reset(self, query, data):
        """reset_prefix_cache."""
        self.prefix_cache = "fresh"

    def tag(self, query, data):
        """update_weight_version."""
        self.version = data["new_version"]
        return {"success": True, "new_version": self.version}

    def init(self, query, data):
        """init_weight_transfer_engine."""
        assert data == {"init_info": {}}
        self.initialised = True
        return {"message": "Weight transfer initialized"}

    def start(self, query, data):
        """start_weight_update."""
        if not self.initialised:
            raise Refusal(500, {"error": {"message": "Weight transfer is not initialized"}})
        self.session, self.updated = True, None
        return {"message": "Weight update started"}

    def update(self, query, data):
        """update_weights of the disk backend."""
        if not self.session or self.updated:
            raise Refusal(400, {"error": {"message": "exactly one checkpoint per session"}})
        self._read(data["update_info"]["path"])
        self.updated = data["update_info"]["path"]
        return {"message": "Weights updated"}

    def finish(self, query, data):
        """finish_weight_update."""
        if not self.updated:
            raise Refusal(400, {"error": {"message": "no weights were updated"}})
        self.session, self.version = False, data["weight_version"]
        return {"message": "Weight update finished"}


class Sglang(Engine):
    """SGLang."""

    name = "sglang"

    def routes(self):
        return {
            "POST /pause_generation": self.pause, "POST /continue_generation": self.proceed,
            "POST /update_weights_from_disk": self.update,
            "GET /model_info": lambda q, d: {"model_path": self.path or "/models/start",
                                             "weight_version": self.version},
            "GET /get_weight_version": lambda q, d: {"weight_version": self.version},
        }

    def pause(self, query, data):
        """Holds traffic; a body is wanted."""
        if not isinstance(data, dict):
            raise Refusal(400, {"detail": "a body is required"})
        if data.get("mode", "abort") not in ("abort", "retract", "in_place"):
            raise Refusal(400, {"error": {"message": "Invalid mode"}})
        self.paused = data["mode"]
        return {"message": "Generation paused successfully.", "status": "ok"}

    def proceed(self, query, data):
        """Lets it in."""
        if not isinstance(data, dict):
            raise Refusal(400, {"detail": "a body is required"})
        self.paused = False
        return {"message": "Generation continued successfully.", "status": "ok"}

    def update(self, query, data):
        """update_weights_from_disk: on an error, the "rollback" reads the new path once more."""
        if data["flush_cache"] and self.paused == "in_place":
            raise Refusal(400, {"success": False, "message": "Cache flush failed"})
        try:
            self.load(data["model_path"])
        except OSError as error:
            try:
                self.load(data["model_path"])
            except OSError:
                pass
            self.loaded = "mixed"
            raise Refusal(400, {"success": False, "message": f"Failed to update weights: {error}. "
                                "Rolling back to original weights.",
                                "num_paused_requests": 0}) from error
        if data.get("weight_version") is not None:
            self.version = data["weight_version"]
        return {"success": True, "message": "Succeeded to update model weights.",
                "num_paused_requests": 0}


class Mlx(Engine):
    """mlx_lm.server: loads what a request names."""

    name = "mlx"

    def routes(self):
        return {"POST /v1/completions": self.complete}

    def complete(self, query, data):
        """One completion."""
        if data["model"] != self.path or self.loaded == "mixed":
            try:
                self.load(data["model"])
            except OSError as error:
                raise Refusal(404, {"error": str(error)}) from error
        return {"model": data["model"], "choices": [{"text": "b"}]}
