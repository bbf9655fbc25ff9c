"""What follows hc_boundary's pass over the streams, for few tokens in one launch."""
