"""mHC's coefficients: mixes split into gates and a Sinkhorn-normalised matrix."""
