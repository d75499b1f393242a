"""Study: predictions of ``shadeproxy plan`` from one run, beside the measured times of other settings."""
