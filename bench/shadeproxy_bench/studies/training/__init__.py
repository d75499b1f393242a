"""Study (b): accuracy and origin bytes of real training in every mode of the sampler. SHADE as published
stands beside SHADE with its bias corrected.
"""
