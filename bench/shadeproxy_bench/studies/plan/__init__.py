"""Study: the times that ``shadeproxy plan`` predicts from one run for other settings, compared with the
measured times.
"""
