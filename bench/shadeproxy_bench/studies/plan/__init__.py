"""Study: the times that ``shadeproxy plan`` predicts from one run for other settings, beside the measured
times.
"""
