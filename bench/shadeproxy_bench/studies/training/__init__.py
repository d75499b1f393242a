"""Study (b): accuracy and origin bytes of real training in every mode of the sampler. SHADE as published is
compared with SHADE whose bias is corrected.
"""
