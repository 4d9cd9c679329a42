"""A real S3-compatible store on loopback (versitygw with a folder), and a client that fills it."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.session import Session

from devkit.cluster.binaries import program
from devkit.cluster.process import Process, free_port
from devkit.cluster.waiting import wait_for

ACCESS_KEY, SECRET_KEY, REGION = "tester", "secret/of+tester", "eu-test-1"
PART_BYTES = 5 << 20
"""Minimum size of an upload part."""
EMPTY = hashlib.md5(usedforsecurity=False).hexdigest()
"""The ETag of files that were put directly into a bucket's folder."""


@dataclass
class S3Server:
    """The store. `client` is a botocore client with the owner's credentials."""

    endpoint: str
    client: Any
    folder: Path
    """Contains a folder for each bucket, with a file for each object."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with the owner's credentials and the endpoint."""
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", **keys}

    def fill(self, bucket: str, objects: dict[str, bytes], **fields: Any) -> None:
        """Create the bucket and put the objects."""
        self.client.create_bucket(Bucket=bucket, ObjectOwnership="BucketOwnerPreferred")
        for key, body in objects.items():
            self.client.put_object(Bucket=bucket, Key=key, Body=body, **fields)

    def upload_in_parts(self, bucket: str, key: str, body: bytes) -> None:
        """Put an object with a multipart upload."""
        upload = self.client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        named: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload}
        parts = []
        for number, begin in enumerate(range(0, len(body), PART_BYTES), 1):
            sent = self.client.upload_part(**named, PartNumber=number, Body=body[begin : begin + PART_BYTES])
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        self.client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})

    def open_to_all(self, bucket: str) -> None:
        """Allow anonymous clients to list and read the bucket."""
        things = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
        statement = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": ["s3:GetObject", "s3:ListBucket"],
            "Resource": things,
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.client.put_bucket_policy(Bucket=bucket, Policy=policy)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run the store; it keeps its buckets below `folder`."""
    port = free_port()
    (folder / "buckets").mkdir(parents=True)
    process = Process(
        "versitygw",
        [
            *(program("versitygw"), "--port", f"127.0.0.1:{port}", "--region", REGION),
            *("--access", ACCESS_KEY, "--secret", SECRET_KEY, "posix", "--sidecar", folder / "facts"),
            *("--default-etag", EMPTY, folder / "buckets"),
        ],
        folder,
    )
    (folder / "facts").mkdir()
    process.start()

    def is_there() -> bool:
        process.check()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for("versitygw to listen", is_there, 20)
        endpoint = f"http://127.0.0.1:{port}"
        client = Session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                retries={"total_max_attempts": 1},
            ),
        )
        yield S3Server(endpoint, client, folder / "buckets")
    finally:
        process.stop()
