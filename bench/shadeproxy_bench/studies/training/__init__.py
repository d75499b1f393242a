"""Study (b): every mode of the sampler on real training, SHADE as published beside SHADE done right."""
