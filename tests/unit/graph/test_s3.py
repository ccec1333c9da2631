"""Parts in a real S3 server on loopback: cut to it, trained from it, refused in words."""

import importlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import siafu
from siafu.errors import StoreError
from siafu.graph import at_hand

pytest.importorskip("moto", reason="the S3 server of the tests: pip install 'moto[s3]' flask")
pytest.importorskip("flask_cors")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket in a server of this process, which the environment leads to."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = importlib.import_module("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    told = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**told, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patched.setenv(name, value)
        boto3 = pytest.importorskip("boto3")
        s3 = boto3.client(
            "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1"
        )
        s3.create_bucket(Bucket="graphs")
        yield "s3://graphs"
    server.stop()


def test_parts_in_a_bucket_train_as_those_on_the_disk(bucket: str, tmp_path: Path) -> None:
    for target in (f"{bucket}/g.parts", tmp_path / "g.parts"):
        siafu.partition("planted:200", target, parts=1, quiet=True)
    far = siafu.fit(f"{bucket}/g.parts", epochs=2, out=tmp_path / "far", quiet=True)
    near = siafu.fit(tmp_path / "g.parts", epochs=2, out=tmp_path / "near", quiet=True)
    assert far.result["losses"] == near.result["losses"]
    assert far.result["fetched_bytes"][0] > 0
    with pytest.raises(StoreError, match="No siafu folder there"):
        at_hand(f"{bucket}/nothing")
    with pytest.raises(StoreError, match="exists already"):
        siafu.partition("planted:200", f"{bucket}/g.parts", quiet=True)
