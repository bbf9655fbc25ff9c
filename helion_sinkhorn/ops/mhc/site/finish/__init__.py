"""What follows the projection of a site with a norm, for few tokens in one launch."""
