"""Study (b): every mode of the sampler in real training, with SHADE as published beside SHADE with its bias
corrected.
"""
