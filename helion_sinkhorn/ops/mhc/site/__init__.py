"""hc_site: everything that an mHC site does before its sublayer, with one gradient of the streams."""
