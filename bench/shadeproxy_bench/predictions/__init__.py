"""Compares measured epochs with the epochs that ``shadeproxy plan`` predicts for them from the profile of one
run.
"""
