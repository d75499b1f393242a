"""The libraries of the AWS credential chain are loaded only when they are used."""

import subprocess
import sys


def test_a_start_does_not_wait_for_the_aws_libraries():
    script = "import sys, shadeproxy.app.serve; print(sorted({'aiobotocore', 'botocore'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
