"""An unmodified boto3 with shorter timeouts, in front of a slow origin. It gets SlowDown before its own
timeout ends.
"""

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

CALLS = {
    "get": lambda s3: s3.get_object(Bucket="data", Key="key"),
    "range": lambda s3: s3.get_object(Bucket="data", Key="key", Range="bytes=0-9"),
    "head": lambda s3: s3.head_object(Bucket="data", Key="key"),
    "list": lambda s3: s3.list_objects_v2(Bucket="data"),
    "version": lambda s3: s3.get_object(Bucket="data", Key="key", VersionId="1"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("workers", [1, 2])
def test_boto3_is_told_to_slow_down_before_it_gives_up(serve, fake_origin, call, workers):
    proxy = serve(
        origin__endpoint=fake_origin.url,
        origin__credentials__source="anonymous",
        origin__timeouts__first_byte="1 s",
        s3__workers=str(workers),
    )
    config = Config(signature_version=UNSIGNED, read_timeout=10, retries={"max_attempts": 0})
    s3 = boto3.client("s3", endpoint_url=proxy.s3, region_name="us-east-1", config=config)
    fake_origin.gate.clear()
    try:
        with pytest.raises(ClientError) as told:
            CALLS[call](s3)
    finally:
        fake_origin.gate.set()
    answer = told.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert answer["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "1"
    assert call == "head" or answer["Error"]["Code"] == "SlowDown"
