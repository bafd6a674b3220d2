"""Where credentials come from, that they are renewed before they expire, and that none is told.

Every secret of these tests is marked; a mark in anything that is printed fails them (lib.leaks).
"""

import time

import pytest

from lib import driven, leaks
from lib.aws_fakes import AwsFakes
from lib.driven import Failed, Store, keys, sentence
from lib.mounted import WAIT, wait_until
from lib.strict_s3 import Key, StrictS3


@pytest.fixture
def server():
    """With one object."""
    with StrictS3() as one:
        one.put("o", bytes(range(256)) * 400)
        yield one


@pytest.fixture
def fakes(server):
    """Container, instance, STS."""
    with AwsFakes(server) as one:
        yield one


def store(server, env, *args, **kwargs):
    """The store with these credentials."""
    return Store("s3://bucket", "--endpoint", server.endpoint, *args, env=env, **kwargs)


def asked_by(server):
    """The access keys that signed requests, in order, without repetitions."""
    out = []
    for line in server.s3.seen:
        access = line.headers["Authorization"].split("Credential=")[1].split("/")[0]
        if not out or out[-1] != access:
            out.append(access)
    return out


def container(fakes, scratch=None):
    """Its environment; the token in a variable, or in a file."""
    env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": fakes.origin + "/container"}
    if scratch is None:
        return {**env, "AWS_CONTAINER_AUTHORIZATION_TOKEN": fakes.container_token}
    leaks.put(scratch / "token", fakes.container_token + "\n")
    return {**env, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(scratch / "token")}


def instance(fakes):
    """Its environment."""
    return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": fakes.origin,
            "AWS_EC2_METADATA_DISABLED": "false", "AWS_METADATA_SERVICE_TIMEOUT": "60"}


def web_identity(fakes, scratch):
    """Its environment; the token is in a file that somebody renews."""
    leaks.put(scratch / "web", fakes.web_token + "\n")
    return {"AWS_WEB_IDENTITY_TOKEN_FILE": str(scratch / "web"), "AWS_ENDPOINT_URL_STS":
            fakes.origin, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}


def process(scratch, text):
    """A profile with a credential_process, in files of its own."""
    script = scratch / "give keys.sh"
    leaks.put(script, "#!/bin/sh\n" + text, 0o700)
    config = scratch / "config"
    config.write_text(f"[default]\nregion = eu-north-1\n[profile tool]\n"
                      f"credential_process = \"{script}\" --account 'a b' # not a comment\n")
    return {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "tool"}


def environment_of(kind, fakes, scratch):
    """By name."""
    return {"container": lambda: container(fakes), "file": lambda: container(fakes, scratch),
            "instance": lambda: instance(fakes),
            "web": lambda: web_identity(fakes, scratch)}[kind]()


SERVICES = ["container", "file", "instance", "web"]


@pytest.mark.parametrize("kind", SERVICES)
def test_service(server, fakes, scratch, kind):
    """Its keys work, and it is asked once."""
    with store(server, environment_of(kind, fakes, scratch)) as s:
        s.list()
        assert s.get("o") == server.objects["o"].data
    assert asked_by(server) == ["ASIAMARKED1"]
    assert fakes.given == 1
    del server.keys["AKIDMARKED"]


@pytest.mark.parametrize("kind", ["file"])
def test_renewed_ahead_of_time(server, fakes, scratch, kind):
    """Within five minutes of their end, in the background; reads go on with the old ones."""
    fakes.life, fakes.most = 200, 2
    with store(server, environment_of(kind, fakes, scratch)) as s:
        s.list()
        handle = s.open("o")

        def renewed():
            # Renewals ahead of time are ten seconds apart, so the second key is seen after that.
            assert s.read(handle, 0, 10) == server.objects["o"].data[:10]
            return asked_by(server)[-1] == "ASIAMARKED2"

        wait_until(renewed, "they are not renewed")
        for _ in range(20):
            assert s.read(handle, 0, 10) == server.objects["o"].data[:10]
    assert asked_by(server) == ["ASIAMARKED1", "ASIAMARKED2"]
    assert all(line.status in (200, 206) for line in server.s3.seen)


@pytest.mark.parametrize("kind", SERVICES)
def test_expired_ones_are_not_used(server, fakes, scratch, kind):
    """After their end a request waits for new ones, and never goes out with the old."""
    fakes.life = 2
    with store(server, environment_of(kind, fakes, scratch)) as s:
        s.list()
        time.sleep(fakes.life + 1.1)
        fakes.end()
        assert s.get("o") == server.objects["o"].data
    assert fakes.given >= 2  # more than two when the machine is slow
    assert all(line.status in (200, 206) for line in server.s3.seen)


def test_expired_by_the_servers_word(server, fakes):
    """ExpiredToken before the time that was promised: renewed once, and repeated."""
    with store(server, container(fakes)) as s:
        s.list()
        fakes.end()
        handle = s.open("o")
        assert s.read(handle, 0, 10) == server.objects["o"].data[:10]
        assert [line.status for line in server.s3.seen].count(400) == 1
        fakes.life, fakes.claim = -10, 3600  # it gives out only what has expired already
        fakes.end()
        with pytest.raises(Failed, match="EACCES"):
            s.read(handle, 0, 10)
    assert fakes.given == 3


def test_old_ones_are_kept_while_the_service_is_down(server, fakes):
    """Until they expire; then the error says who did not answer."""
    fakes.life = 200  # which is renewed ahead of time, or would be
    with store(server, container(fakes)) as s:
        s.list()
        fakes.broken = True
        handle = s.open("o")
        for _ in range(5):
            assert s.read(handle, 0, 10) == server.objects["o"].data[:10]
    fakes.broken, fakes.life = False, 2
    with store(server, container(fakes)) as s:
        s.list()
        fakes.server.stop()
        end = time.monotonic() + WAIT
        with pytest.raises(Failed, match="no credentials from the container's service"):
            while time.monotonic() < end:
                s.list()
                time.sleep(0.2)
        fakes.life = 3600
        fakes.server.start()
        s.list()


@pytest.mark.parametrize("kind", SERVICES)
def test_refused(server, fakes, scratch, kind):
    """A token that the service does not know."""
    env = environment_of(kind, fakes, scratch)
    fakes.container_token = fakes.web_token = "another"
    fakes.sessions = frozenset()
    fakes.sessions = type("Never", (set,), {"add": lambda *_: None})()
    name, text = sentence("s3://bucket", "--endpoint", server.endpoint, env=env)
    assert name == "EACCES", text
    assert {"container": "the container's service", "file": "the container's service",
            "instance": "the instance's metadata service",
            "web": "the web identity"}[kind] in text


def test_web_identity_token_file_is_read_again(server, fakes, scratch):
    """At each renewal."""
    env = web_identity(fakes, scratch)
    fakes.life = 2
    with store(server, env) as s:
        s.list()
        fakes.web_token = "NEWMARKED"
        leaks.put(scratch / "web", "NEWMARKED")
        time.sleep(fakes.life + 1.1)
        s.list()
    assert fakes.given >= 2


def test_order(server, fakes, scratch):
    """Option, environment, web identity, profile, container: the first that is there."""
    server.keys["PROFMARKED"] = Key("PROFSECRETMARKED")
    server.keys["NAMEDMARKED"] = Key("NAMEDSECRETMARKED")
    (scratch / ".aws").mkdir()
    leaks.put(
        scratch / ".aws" / "credentials",
        "[default]\naws_access_key_id = PROFMARKED\naws_secret_access_key=PROFSECRETMARKED\n"
        "[named]\nAWS_ACCESS_KEY_ID=NAMEDMARKED\naws_secret_access_key = NAMEDSECRETMARKED\n")
    env = {**container(fakes), **instance(fakes), **web_identity(fakes, scratch), **keys()}
    want = [("NAMEDMARKED", ("--profile", "named"), ()),
            ("AKIDMARKED", (), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            ("ASIAMARKED1", (), ("AWS_WEB_IDENTITY_TOKEN_FILE",)),
            ("PROFMARKED", (), ()),
            ("NAMEDMARKED", (), ()), ]
    for at, (access, args, remove) in enumerate(want):
        server.s3.seen.clear()
        if at == 4:
            env["AWS_PROFILE"] = "named"
        with store(server, env, *args, home=str(scratch)) as s:
            s.list()
        assert asked_by(server) == [access]
        for name in remove:
            del env[name]
    del env["AWS_PROFILE"]
    (scratch / ".aws" / "credentials").unlink()
    assert not any("container" in a for a in fakes.asked)
    with store(server, env, home=str(scratch)) as s:
        s.list()
    assert fakes.asked[-1] == "GET /container"
    del env["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    with store(server, env, home=str(scratch)) as s:
        s.list()
    assert fakes.asked[-1].endswith("/the-role")


def test_credential_process(server, scratch):
    """Its words reach it as the shell splits them; it is run again when its keys end."""
    server.region = "eu-north-1"
    env = process(scratch, f"""
        echo "$*" >>"{scratch}/calls"
        n=$(wc -l <"{scratch}/calls")
        printf '{{"Version": 1, "AccessKeyId": "P%sMARKED", "SecretAccessKey": "SMARKED",' "$n"
        printf '"SessionToken": "TMARKED", "Expiration": "%s"}}' "$(date -u -d '+2 sec' +%FT%TZ)"
    """)
    for n in range(1, 100):
        server.keys[f"P{n}MARKED"] = Key("SMARKED", "TMARKED")
    with store(server, env, "--region", "eu-north-1") as s:
        s.list()
        time.sleep(3.1)
        s.list()
    calls = (scratch / "calls").read_text().splitlines()
    assert set(calls) == {"--account a b"} and len(calls) >= 2
    numbers = [int(access[1:-len("MARKED")]) for access in asked_by(server)]
    assert len(numbers) >= 2 and numbers == sorted(numbers) and numbers[-1] <= len(calls)


@pytest.mark.parametrize("text,what", [
    ("exit 7", "exit code 7"), ("echo hello SECRETMARKED", "did not print JSON"),
    ("echo '{\"Version\": 2}'", 'did not print "Version": 1'),
    ("echo '{\"Version\": 1, \"AccessKeyId\": \"x\"}'", "no credentials in it"),
    ("head -c 100000 /dev/zero", "printed too much"), ("kill -9 $$", "exit code 137"),
], ids=["fails", "text", "version", "half", "much", "killed"])
def test_credential_process_that_fails(server, scratch, text, what):
    """A sentence, and nothing of what it printed."""
    name, said = sentence("s3://bucket", "--endpoint", server.endpoint,
                          env=process(scratch, text + "\n"))
    assert name in ("EACCES", "EPROTO") and what in said and "profile 'tool'" in said


def test_profile_file_is_read_again(server, scratch):
    """Somebody wrote new temporary keys into it: ExpiredToken leads to them."""
    path = scratch / "credentials"

    def write(n):
        server.keys[f"K{n}MARKED"] = Key("SMARKED", f"T{n}MARKED")
        leaks.put(path, f"[default]\naws_access_key_id = K{n}MARKED\n"
                        f"aws_secret_access_key = SMARKED\naws_session_token = T{n}MARKED\n")

    write(1)
    with store(server, {"AWS_SHARED_CREDENTIALS_FILE": str(path)}) as s:
        s.list()
        server.keys["K1MARKED"] = server.keys["K1MARKED"]._replace(expires=0)
        with pytest.raises(Failed, match="there are no newer ones"):
            s.list()
        write(2)
        s.list()
    assert asked_by(server) == ["K1MARKED", "K2MARKED"]


def test_profile_with_everything(server, scratch):
    """Endpoint and region from the profile, its services section first."""
    server.region = "ap-south-1"
    leaks.put(
        scratch / "config", "[profile p]\nregion = ap-south-1\nservices = mine\n"
        "endpoint_url = http://127.0.0.1:1\n"
        "aws_access_key_id = AKIDMARKED\naws_secret_access_key = SECRETMARKED\n"
        f"s3 =\n  addressing_style = path\n[services mine]\ns3 =\n"
        f"  endpoint_url = {server.endpoint}\n")
    env = {"AWS_CONFIG_FILE": str(scratch / "config"), "AWS_PROFILE": "p"}
    with Store("s3://bucket", env=env) as s:
        assert list(s.list()) == ["o"]
    assert all(line.status == 200 for line in server.s3.seen)
    env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    env["AWS_ENDPOINT_URL_S3"] = server.endpoint
    with Store("s3://bucket", env=env) as s:
        assert list(s.list()) == ["o"]


@pytest.mark.parametrize("lines,what", [
    ("role_arn = arn:x\nsource_profile = y", "assumes a role"),
    ("sso_session = s", "signs in by SSO"),
    ("region = x", "has neither keys nor a credential_process"),
    ("aws_access_key_id = x", "has no aws_secret_access_key"),
], ids=["role", "sso", "empty", "half"])
def test_profiles_that_are_not_enough(server, scratch, lines, what):
    """Each with its own sentence."""
    (scratch / "config").write_text(f"[profile p]\n{lines}\n")
    env = {"AWS_CONFIG_FILE": str(scratch / "config")}
    _, said = sentence("s3://bucket", "--endpoint", server.endpoint, "--profile", "p", env=env)
    assert what in said


def test_metadata_service_that_is_not_there(server):
    """Connection refused: one sentence with all that helps, soon."""
    name, said = sentence("s3://bucket", "--endpoint", server.endpoint, env={
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
        "AWS_EC2_METADATA_DISABLED": "false"})
    assert name == "EACCES"
    assert "there are no credentials" in said and "--no-sign-request" in said
