"""The end of the residual path by a head: new streams collapsed by weights that are made of them."""
