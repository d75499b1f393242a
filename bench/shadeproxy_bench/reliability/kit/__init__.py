"""Parts that the long runs and the tests share: schedules of faults drawn from a seed, media and origins that
suffer such faults, and the judging of runs.
"""
