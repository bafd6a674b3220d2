"""The strict S3 server is one to the real client: boto3 lists, reads and writes, and is refused."""

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lib.strict_s3 import StrictS3

ODD = ["a b+c", "per%41cent", "ü/✓", "x//y", "tab\there", "q?a=b&c#d", "plain"]


@pytest.fixture
def server():
    """One with a few objects."""
    with StrictS3() as one:
        for key in ODD:
            one.put(key, key.encode() * 100)
        yield one


def client(server, secret="SECRETMARKED", region="us-east-1"):
    """boto3, plain bodies, path style."""
    return boto3.client(
        "s3", endpoint_url=server.endpoint, aws_access_key_id="AKIDMARKED",
        aws_secret_access_key=secret, region_name=region,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1},
                      request_checksum_calculation="when_required",
                      response_checksum_validation="when_required"))


def refused(call, **kwargs):
    """The code of a refusal."""
    with pytest.raises(ClientError) as error:
        call(**kwargs)
    return error.value.response["Error"]["Code"]


def test_listing_in_pages(server):
    """All keys, whatever is in them, three to a page."""
    server.page = 3
    pages = client(server).get_paginator("list_objects_v2").paginate(Bucket="bucket")
    assert sorted(o["Key"] for page in pages for o in page["Contents"]) == sorted(ODD)
    assert server.s3.count("continuation-token=") == 2


def test_reads(server):
    """Ranges, conditions and errors."""
    c = client(server)
    for key in ODD:
        etag = c.head_object(Bucket="bucket", Key=key)["ETag"]
        got = c.get_object(Bucket="bucket", Key=key, Range="bytes=3-9", IfMatch=etag)
        assert got["Body"].read() == (key.encode() * 100)[3:10]
        assert refused(c.get_object, Bucket="bucket", Key=key, IfMatch='"x"') == \
            "PreconditionFailed"
    assert refused(c.get_object, Bucket="bucket", Key="plain", IfMatch=etag,
                   Range="bytes=700-") == "InvalidRange"
    assert refused(c.get_object, Bucket="bucket", Key="none") == "NoSuchKey"


def test_who_asks(server):
    """Wrong secret, unknown key, wrong region, wrong time, no key."""
    assert refused(client(server, "wrong").list_objects_v2, Bucket="bucket") == \
        "SignatureDoesNotMatch"
    elsewhere = client(server, region="eu-west-1").list_objects_v2(Bucket="bucket")
    assert elsewhere["KeyCount" if "KeyCount" in elsewhere else "Name"]  # boto3 repairs it
    server.clock = 3600
    assert refused(client(server).list_objects_v2, Bucket="bucket") == "RequestTimeTooSkewed"
    server.clock = 0
    del server.keys["AKIDMARKED"]
    assert refused(client(server).list_objects_v2, Bucket="bucket") == "InvalidAccessKeyId"


def test_writes(server):
    """PUT with conditions, and a multipart upload."""
    server.patience = 0
    c = client(server)
    c.put_object(Bucket="bucket", Key="new", Body=b"1", IfNoneMatch="*")
    assert refused(c.put_object, Bucket="bucket", Key="new", Body=b"2", IfNoneMatch="*") == \
        "PreconditionFailed"
    upload = c.create_multipart_upload(Bucket="bucket", Key="big")["UploadId"]
    parts = [c.upload_part(Bucket="bucket", Key="big", UploadId=upload, PartNumber=n, Body=body)
             for n, body in ((1, b"a" * 1000), (2, b"b" * 10))]
    done = c.complete_multipart_upload(Bucket="bucket", Key="big", UploadId=upload,
                                       MultipartUpload={"Parts": [
                                           {"PartNumber": n + 1, "ETag": p["ETag"]}
                                           for n, p in enumerate(parts)]})
    assert done["ETag"].endswith('-2"')
    assert server.objects["big"].data == b"a" * 1000 + b"b" * 10
