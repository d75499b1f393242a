"""The differential suite (tests/differential) with a real S3 server as the origin, and with more examples."""

import pytest

from shadeproxy.core.sigv4 import Credentials
from tests.differential.forms import form_uploads
from tests.differential.operations import buckets, clearing
from tests.differential.sides import FORMS, make_sides
from tests.differential.suite import (
    keys_are_the_origins,
    operations_are_the_origins,
    play_scenes,
    reads_are_the_origins,
)

pytestmark = pytest.mark.rgw


@pytest.fixture(scope="module", params=FORMS)
def sides(request, rgw, serve_for_module, tmp_path_factory):
    key, directory = Credentials(*rgw.main), tmp_path_factory.mktemp("differential")
    with make_sides(serve_for_module, rgw.endpoint, key, directory, request.param) as made:
        yield made


def test_reads_in_every_form_are_the_origins(sides):
    reads_are_the_origins(sides, examples=250)


def test_keys_in_every_spelling_are_the_origins(sides):
    keys_are_the_origins(sides, examples=45)


def test_every_operation_and_its_errors_are_the_origins(sides):
    operations_are_the_origins(sides)


def test_browser_uploads_obey_their_policies_as_at_the_origin(sides):
    play_scenes(sides, (buckets, form_uploads, clearing))
