"""``Signer`` makes the same signatures as ``signature``, although it keeps the hashes of the parts that do
not change.
"""

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.sigv4 import Signer

DATES = st.sampled_from(["20261121T000000Z", "20261121T000001Z", "20261122T235959Z"])


@given(
    key=st.binary(min_size=1, max_size=64),
    scope=st.text("abcdefgh/0123456789-", max_size=60),
    asked=st.lists(st.tuples(DATES, st.binary(max_size=300)), min_size=1, max_size=8),
)
def test_each_signature_is_the_hmac_of_its_own_second_and_request(key, scope, asked):
    signer = Signer(key, scope)
    for amz_date, canonical in asked:
        text = f"AWS4-HMAC-SHA256\n{amz_date}\n{scope}\n{hashlib.sha256(canonical).hexdigest()}"
        expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        assert signer.sign(amz_date.encode(), canonical) == expected
