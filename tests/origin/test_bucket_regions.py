"""``BucketRegions``: one process learns the region of a bucket, and others adopt it."""

from shadeproxy.origin.addressing import Endpoint
from shadeproxy.origin.bucket_regions import BucketRegions


def test_an_endpoint_uses_a_region_that_another_process_has_learnt():
    regions, told = BucketRegions(), []
    regions.on_learnt = lambda *lesson: told.append(lesson)
    endpoint = Endpoint(None, region="us-east-1", regions=regions)
    assert endpoint.target_of("far", "/far").region == "us-east-1"
    assert regions.adopt("far", "eu-west-1")
    assert endpoint.target_of("far", "/far").host == "far.s3.eu-west-1.amazonaws.com"
    assert told == []  # A lesson from another process is not sent back.


def test_a_region_is_reported_once():
    regions, told = BucketRegions(), []
    regions.on_learnt = lambda *lesson: told.append(lesson)
    regions.learn("far", "eu-west-1")
    regions.learn("far", "eu-west-1")
    assert told == regions.all() == [("far", "eu-west-1")]


def test_the_oldest_of_too_many_buckets_is_dropped():
    regions = BucketRegions()
    for number in range(1025):
        regions.adopt(f"bucket-{number}", "eu-west-1")
    assert len(regions.all()) == 1024
    assert regions.by_bucket.get("bucket-0") is None
