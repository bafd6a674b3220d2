"""No network: a mount with a warm cache shows what was there last and says so, and comes back."""

import errno

from lib import mounted, reading
from lib.everywhere import LONG, TIMEOUT, everywhere, forget, in_time, surely_file, surely_tree
from lib.mounted import wait_until


def metric(m, name):
    """A metric's value, as text."""
    lines = (m.dot / "metrics").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith(name + " "))


def test_start_offline(cases, scratch):
    """Everything that was read is there, the rest is an error; status, its line and the metrics say
    why; then it goes on by itself."""
    def one(case):
        work, place = scratch / "work" / case.name, case.place
        place.put("unread.bin", b"u" * 300000)
        shown = case.files(3)
        with case.mount(work=work) as m:
            m.wait_version(3)
            surely_tree(m.at, shown)
        place.gone()
        with case.mount(work=work) as m:
            m.wait_version(3)
            for path in reading.tree(m.at).values():
                with open(path, "rb") as f:
                    forget(f)
            surely_tree(m.at, shown)
            surely_tree(m.tree(3), shown)
            assert f"offline: {place.url} is shown as it was on" in m.status()["line"]
            assert "offline" in mounted.run("status", m.at).stdout
            assert in_time((m.dot / "bucket" / "unread.bin").read_bytes) == errno.EIO
            wait_until(lambda: m.status()["store_error"], m.status, LONG)
            assert metric(m, "weightfs_source_reachable") == "0"
            assert m.version() == 3
            place.back()
            case.follow(m)
            wait_until(lambda: "offline" not in m.status()["line"], m.status, LONG)
            wait_until(lambda: metric(m, "weightfs_source_reachable") == "1", m.status)
            assert surely_file(m.dot / "bucket" / "unread.bin") == b"u" * 300000
            surely_tree(m.tree(3), shown)

    everywhere(cases, one)


def test_start_offline_without_a_cache(cases, scratch):
    """Nothing is invented: one sentence, exit code 1, no mount."""
    def one(case):
        case.place.gone()
        point = scratch / "points" / case.name
        point.mkdir(parents=True)
        done = mounted.run("mount", *case.place.args, "--cache-dir", scratch / "caches" / case.name,
                           case.place.url, point, check=False, timeout=LONG)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("weightfs: ") and "127.0.0.1" in done.stderr, done.stderr
        assert not mounted.is_mounted(point)
        case.place.back()

    everywhere(cases, one)


def test_base_offline(cases, scratch, bucket):
    """A base from such a place, offline: the base's files are served from the cache."""
    def one(case):
        work = scratch / "work" / case.name
        # The newest version's file is a checkpoint as good as any.
        model = case.files(3)["model.safetensors"]
        for key in [k for k in case.place.known if k.startswith(("anchors/", "deltas/"))]:
            case.place.delete(key)
        case.place.put("model.safetensors", model)
        args = [*case.place.args, "--timeout", TIMEOUT]
        for offline in (False, True):
            if offline:
                case.place.gone()
            with mounted.Mount(bucket, base=case.place.url, work=work, args=args) as m:
                assert surely_file(m.at / "model.safetensors") == model
                assert surely_file(m.at / "tokenizer.json") == \
                    case.place.known["tokenizer.json"]
        case.place.back()

    everywhere(cases, one)
